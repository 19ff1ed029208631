-- +goose Up

-- Who the store was when a copy of it retired it, so that a run of the copy that ended
-- just then is known when it is repeated.
ALTER TABLE store ADD COLUMN moved_epoch TEXT NOT NULL DEFAULT ''; -- its data_epoch, which the copy goes on with; '' = there was no copy
ALTER TABLE store ADD COLUMN moved_commits INTEGER NOT NULL DEFAULT 0;
