-- +goose Up

-- Which session of a login and device may send: none with a lower epoch. Rows are
-- made under the setting session.strict only.
CREATE TABLE session (
  user_id  text    COLLATE "C" NOT NULL,
  login    text    COLLATE "C" NOT NULL,
  device   text    COLLATE "C" NOT NULL,
  epoch    bigint  NOT NULL, -- route epoch of the newest claim
  replaced boolean NOT NULL, -- that claim was another login's
  until_ms bigint  NOT NULL, -- no session can live longer
  PRIMARY KEY (user_id, login, device)
) WITH (fillfactor = 50);

-- sessions holds what is noted of the sessions that write a batch, which are
-- sorted, for the rest of the transaction, so that a newer claim comes after the
-- batch or the batch sees it. It fails with the code IM004 if one has been
-- displaced; the detail lists these. Else it returns make.
-- +goose StatementBegin
CREATE FUNCTION imd_sessions(make boolean, users text[], logins text[], devices text[], epochs bigint[]) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
  gone json;
BEGIN
  SELECT json_agg(json_build_object('user', s.user_id, 'login', s.login, 'device', s.device, 'epoch', p.epoch, 'replaced', s.replaced))
      FILTER (WHERE s.epoch > p.epoch) INTO gone
    FROM unnest(users, logins, devices, epochs) AS p (u, l, d, epoch)
    CROSS JOIN LATERAL (SELECT * FROM session x WHERE x.user_id = p.u AND x.login = p.l AND x.device = p.d FOR SHARE) s;
  IF gone IS NOT NULL THEN
    RAISE SQLSTATE 'IM004' USING MESSAGE = 'a session has been displaced', DETAIL = gone::text;
  END IF;
  RETURN make;
END $$;
-- +goose StatementEnd

-- expire removes revocations that no longer hold at now_, and notes of sessions
-- that are over, if the fence still is as the caller says; -1 if it is not. It
-- returns how many revocations there were.
-- +goose StatementBegin
CREATE OR REPLACE FUNCTION imd_expire(name_ text, token_ bigint, holder_ text, at_ms bigint) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
  n bigint;
BEGIN
  PERFORM 1 FROM fence f WHERE f.name = name_ AND f.token = token_ AND f.holder = holder_ FOR SHARE;
  IF NOT FOUND THEN
    RETURN -1;
  END IF;
  DELETE FROM revocation WHERE until_ms <= at_ms;
  GET DIAGNOSTICS n = ROW_COUNT;
  DELETE FROM session WHERE until_ms <= at_ms;
  RETURN n;
END $$;
-- +goose StatementEnd
