-- +goose Up

-- When users were last seen.
CREATE TABLE seen (
  user_id TEXT    PRIMARY KEY,
  at_ms   INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
