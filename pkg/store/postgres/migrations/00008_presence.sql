-- +goose Up

-- When users were last seen.
CREATE TABLE seen (
  at_ms   bigint NOT NULL,
  user_id text   COLLATE "C" PRIMARY KEY
) WITH (fillfactor = 80);

-- save_seen notes when users were last seen, if the fence still is as the caller
-- says; false if it is not. The order keeps two of them from waiting for each
-- other.
-- +goose StatementBegin
CREATE FUNCTION imd_save_seen(name_ text, token_ bigint, holder_ text, users text[], times bigint[]) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
  PERFORM 1 FROM fence f WHERE f.name = name_ AND f.token = token_ AND f.holder = holder_ FOR SHARE;
  IF NOT FOUND THEN
    RETURN false;
  END IF;
  INSERT INTO seen AS s (user_id, at_ms)
    SELECT u, max(t) FROM unnest(users, times) AS x (u, t) GROUP BY u ORDER BY u COLLATE "C"
    ON CONFLICT (user_id) DO UPDATE SET at_ms = excluded.at_ms WHERE excluded.at_ms > s.at_ms;
  RETURN true;
END $$;
-- +goose StatementEnd
