-- +goose Up

-- What everybody is told.
CREATE TABLE announcement (
  seq          INTEGER PRIMARY KEY,
  created_ms   INTEGER NOT NULL,
  expires_ms   INTEGER NOT NULL,
  withdrawn_ms INTEGER NOT NULL, -- 0 = it is not
  request_id   TEXT    NOT NULL UNIQUE,
  body         TEXT    NOT NULL
) STRICT;

-- One row: the number of the newest announcement, and of the newest change.
CREATE TABLE announcing (
  id       INTEGER PRIMARY KEY CHECK (id = 1),
  last_seq INTEGER NOT NULL,
  version  INTEGER NOT NULL
) STRICT;

INSERT INTO announcing (id, last_seq, version) VALUES (1, 0, 0);
