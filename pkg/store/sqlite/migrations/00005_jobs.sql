-- +goose Up

-- Where each job of the leader stands.
CREATE TABLE job (
  name   TEXT    PRIMARY KEY,
  token  INTEGER NOT NULL, -- of the leader that wrote it
  holder TEXT    NOT NULL,
  ran_ms INTEGER NOT NULL, -- beginning of the last round that did its work, 0 = never
  rounds INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
