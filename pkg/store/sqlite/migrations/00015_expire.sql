-- +goose Up

-- What is over, and what is being sent, is found by its time. Stores of builds between
-- two releases have these indexes already.
CREATE INDEX IF NOT EXISTS revocation_until ON revocation (until_ms);
CREATE INDEX IF NOT EXISTS session_until ON session (until_ms);
CREATE INDEX IF NOT EXISTS mute_until ON mute (until_ms);
CREATE INDEX IF NOT EXISTS scheduled_sending ON scheduled (next_ms) WHERE state = 2;
