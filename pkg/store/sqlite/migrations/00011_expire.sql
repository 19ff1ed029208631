-- +goose Up

-- What is over is found by its time.
CREATE INDEX revocation_until ON revocation (until_ms);
CREATE INDEX session_until ON session (until_ms);
CREATE INDEX mute_until ON mute (until_ms);
