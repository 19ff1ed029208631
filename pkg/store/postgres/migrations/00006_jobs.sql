-- +goose Up

-- Where each job of the leader stands.
CREATE TABLE job (
  name   text   COLLATE "C" PRIMARY KEY,
  token  bigint NOT NULL, -- of the leader that wrote it
  holder text   NOT NULL,
  ran_ms bigint NOT NULL, -- beginning of the last round that did its work, 0 = never
  rounds bigint NOT NULL
) WITH (fillfactor = 50);

-- proven reports whether the fence still is as the caller says, and keeps it so
-- until the transaction ends.
-- +goose StatementBegin
CREATE FUNCTION imd_proven(name_ text, token_ bigint, holder_ text) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
  PERFORM 1 FROM fence f WHERE f.name = name_ AND f.token = token_ AND f.holder = holder_ FOR SHARE;
  RETURN FOUND;
END $$;
-- +goose StatementEnd

-- save_job stores the row of a job, if the fence still is as the caller says;
-- false if it is not.
-- +goose StatementBegin
CREATE FUNCTION imd_save_job(fence_ text, token_ bigint, holder_ text, name_ text, at_ms bigint, rounds_ bigint) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
  IF NOT imd_proven(fence_, token_, holder_) THEN
    RETURN false;
  END IF;
  INSERT INTO job (name, token, holder, ran_ms, rounds) VALUES (name_, token_, holder_, at_ms, rounds_)
    ON CONFLICT (name) DO UPDATE SET token = excluded.token, holder = excluded.holder, ran_ms = excluded.ran_ms, rounds = excluded.rounds;
  RETURN true;
END $$;
-- +goose StatementEnd
