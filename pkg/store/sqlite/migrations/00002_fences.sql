-- +goose Up

-- The newest token of each leader and lock.
CREATE TABLE fence (
  name       TEXT    PRIMARY KEY,
  token      INTEGER NOT NULL, -- rises by one with each claim
  holder     TEXT    NOT NULL,
  cluster    TEXT    NOT NULL, -- the etcd cluster that revision counts in
  revision   INTEGER NOT NULL,
  claimed_ms INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

-- Worker numbers that are leased from here because etcd is away.
CREATE TABLE worker_lease (
  id       INTEGER PRIMARY KEY,
  holder   TEXT    NOT NULL,
  until_ms INTEGER NOT NULL
) STRICT;
