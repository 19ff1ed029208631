-- +goose Up

-- Nobody sees what is up to here any more, and its sends have no content.
ALTER TABLE conversation ADD COLUMN kept INTEGER NOT NULL DEFAULT 0;
