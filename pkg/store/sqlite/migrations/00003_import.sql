-- +goose Up

-- The copy of another store into this one; no row = there never was one.
CREATE TABLE import (
  id          INTEGER PRIMARY KEY CHECK (id = 1),
  data_epoch  TEXT    NOT NULL, -- of the source
  state       TEXT    NOT NULL, -- of the source; another one if it has changed
  newest_ms   INTEGER NOT NULL, -- of the source
  finished_ms INTEGER NOT NULL  -- 0 = not yet, and no node serves from here
) STRICT;

-- How far it has come in each table.
CREATE TABLE import_table (
  name  TEXT    PRIMARY KEY,
  place TEXT    NOT NULL, -- behind the last row, in the source
  ended INTEGER NOT NULL,
  rows  INTEGER NOT NULL,
  sum   TEXT    NOT NULL
) STRICT, WITHOUT ROWID;
