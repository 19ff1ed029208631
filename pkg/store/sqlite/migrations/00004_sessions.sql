-- +goose Up

-- Which session of a login and device may send: none with a lower epoch. Rows are
-- made under the setting session.strict only.
CREATE TABLE session (
  user_id  TEXT    NOT NULL,
  login    TEXT    NOT NULL,
  device   TEXT    NOT NULL,
  epoch    INTEGER NOT NULL, -- route epoch of the newest claim
  replaced INTEGER NOT NULL, -- 1 = that claim was another login's
  until_ms INTEGER NOT NULL, -- no session can live longer
  PRIMARY KEY (user_id, login, device)
) STRICT, WITHOUT ROWID;
