-- +goose Up

-- Users of whom the newest event says that they are online.
CREATE TABLE user_online (
  user_id TEXT PRIMARY KEY
) STRICT, WITHOUT ROWID;
