-- +goose Up

-- The copy of another store into this one; no row = there never was one.
CREATE TABLE import (
  id          smallint PRIMARY KEY CHECK (id = 1),
  data_epoch  text   NOT NULL, -- of the source
  state       text   NOT NULL, -- of the source; another one if it has changed
  newest_ms   bigint NOT NULL, -- of the source
  finished_ms bigint NOT NULL  -- 0 = not yet, and no node serves from here
);

-- How far it has come in each table.
CREATE TABLE import_table (
  name  text    PRIMARY KEY,
  place text    NOT NULL, -- behind the last row, in the source
  ended boolean NOT NULL,
  rows  bigint  NOT NULL,
  sum   text    NOT NULL
);
