-- +goose Up

-- Number of the withdrawal in the sequence of announcements; 0 = there was none, or
-- before withdrawals had numbers.
ALTER TABLE announcement ADD COLUMN withdrawal INTEGER NOT NULL DEFAULT 0;

-- What is in force, and what has ended, is found by its time.
CREATE INDEX announcement_expires ON announcement (expires_ms);
CREATE INDEX announcement_withdrawn ON announcement (withdrawn_ms) WHERE withdrawn_ms > 0;
CREATE INDEX announcement_withdrawal ON announcement (withdrawal) WHERE withdrawal > 0;

-- The user has, or may have, been told of this or of an older message of the
-- conversation, and has not read it since; of what was sent or is withdrawn its
-- state says so. Up to now tries did for the others, which also count those that were
-- refused.
ALTER TABLE push ADD COLUMN told INTEGER NOT NULL DEFAULT 0;
UPDATE push SET told = 1 WHERE tries > 0 AND state IN (1, 4);
