-- +goose Up

-- One row: who this store is.
CREATE TABLE store (
  id         smallint PRIMARY KEY CHECK (id = 1),
  data_epoch text NOT NULL, -- the history of the store
  identity   text NOT NULL, -- of the cluster that the data_epoch is for: system, timeline, table
  allocator  text NOT NULL  -- who gives out seqs: transaction
);

-- Where sessions leave traces that all need and none may wait for: each writes
-- the row of its process number.
CREATE TABLE slot (
  id        smallint PRIMARY KEY,
  newest_ms bigint NOT NULL, -- server time of the newest entry written here, 0 = none
  probes    bigint NOT NULL  -- counts writes that only prove that writing works
) WITH (fillfactor = 10);

INSERT INTO slot SELECT n, 0, 0 FROM generate_series(0, 63) AS n;

-- version and head_version are numbers of transactions. With the oldest one
-- that was under way at a moment, they say what may have changed since.
-- No index holds a column that an append changes, so that the row is updated
-- within its page; half of each page is kept free for that.
CREATE TABLE conversation (
  num            bigint   GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  head           bigint   NOT NULL DEFAULT 0,
  member_version bigint   NOT NULL DEFAULT 0,
  version        bigint   NOT NULL, -- last change of what all members see
  head_version   bigint   NOT NULL, -- last change of head
  members        integer  NOT NULL DEFAULT 0, -- present ones
  kind           smallint NOT NULL,
  closed         boolean  NOT NULL DEFAULT false,
  open_history   boolean  NOT NULL DEFAULT false,
  id             text     COLLATE "C" NOT NULL,
  name           text     NOT NULL,
  user_a         text     COLLATE "C" NOT NULL, -- of a direct one; user_a < user_b
  user_b         text     COLLATE "C" NOT NULL
) WITH (fillfactor = 50);

CREATE UNIQUE INDEX conversation_id ON conversation (id);

-- What the log is. Partitioned by conversation, not by time: the key that makes
-- a send happen once must hold over all partitions, so it must contain what
-- they are cut by; and a conversation's log stays in one place, which can later
-- be a server of its own. 16 parts keep the indexes of 10 billion messages
-- within what one machine can vacuum, and more would cost each append, which
-- opens all parts that its rows go to. The number cannot be changed later
-- without copying.
CREATE TABLE entry (
  conv        bigint   NOT NULL,
  seq         bigint   NOT NULL,
  message_id  bigint   NOT NULL,
  server_ms   bigint   NOT NULL,
  back        integer  NOT NULL, -- seq minus that of the entry before
  kind        smallint NOT NULL,
  countable   boolean  NOT NULL,
  sender      text     COLLATE "C" NOT NULL, -- '' = the system
  client_key  bytea    NOT NULL, -- of changes the request id; a UUID takes 16 bytes
  body_hash   bytea,             -- of sends, half of it; of changes NULL
  body        bytea,             -- content of sends, text of changes
  target_seq  bigint,            -- NULL = 0
  changed_seq bigint,            -- NULL = 0
  PRIMARY KEY (conv, seq)
) PARTITION BY HASH (conv);

CREATE UNIQUE INDEX entry_key ON entry (conv, sender, client_key);

-- +goose StatementBegin
DO $$
BEGIN
  FOR n IN 0..15 LOOP
    EXECUTE format('CREATE TABLE entry_%s PARTITION OF entry FOR VALUES WITH (MODULUS 16, REMAINDER %s)', lpad(n::text, 2, '0'), n);
  END LOOP;
END $$;
-- +goose StatementEnd

-- Everyone who is or was a member. Found by user: sync is a range scan.
CREATE TABLE member (
  conv            bigint   NOT NULL,
  first_seq       bigint   NOT NULL, -- where its first stretch starts
  start_seq       bigint   NOT NULL, -- of the newest stretch: sees (start_seq, end_seq]
  end_seq         bigint   NOT NULL, -- 0 = still open
  cleared         bigint   NOT NULL, -- sees nothing up to here
  delivered       bigint   NOT NULL,
  read            bigint   NOT NULL,
  version         bigint   NOT NULL, -- last change of this row
  role            smallint NOT NULL, -- 0 = not a member any more
  user_id         text     COLLATE "C" NOT NULL,
  conversation_id text     COLLATE "C" NOT NULL,
  left_name       text     NOT NULL, -- the name when they left
  earlier         bytea    NOT NULL, -- stretches before it
  PRIMARY KEY (user_id, conversation_id)
) WITH (fillfactor = 80);

CREATE INDEX member_present ON member (conv, user_id) WHERE role > 0;

-- Groups by the request that made them.
CREATE TABLE creation (
  actor      text   COLLATE "C" NOT NULL,
  client_key bytea  NOT NULL,
  conv       bigint NOT NULL,
  PRIMARY KEY (actor, client_key)
);

CREATE TABLE account (
  id         text    COLLATE "C" PRIMARY KEY,
  created_ms bigint  NOT NULL,
  disabled   boolean NOT NULL
);

CREATE TABLE block (
  user_id text COLLATE "C" NOT NULL,
  blocked text COLLATE "C" NOT NULL,
  PRIMARY KEY (user_id, blocked)
);

CREATE TABLE revocation (
  user_id          text    COLLATE "C" NOT NULL,
  login            text    COLLATE "C" NOT NULL, -- '' = all logins issued before
  issued_before_ms bigint  NOT NULL,
  until_ms         bigint  NOT NULL,
  reason           integer NOT NULL,
  PRIMARY KEY (user_id, login)
);

CREATE INDEX revocation_until ON revocation (until_ms);

CREATE TABLE api_key (
  id          text   COLLATE "C" PRIMARY KEY,
  name        text   NOT NULL,
  scopes      text[] NOT NULL,
  secret_hash bytea  NOT NULL,
  created_ms  bigint NOT NULL,
  revoked_ms  bigint NOT NULL -- 0 = no
);

CREATE TABLE worker (
  id      integer PRIMARY KEY,
  mark_us bigint NOT NULL
) WITH (fillfactor = 50);

-- Worker numbers that are leased from here because etcd is away.
CREATE TABLE worker_lease (
  id       integer PRIMARY KEY,
  holder   text   NOT NULL,
  until_ms bigint NOT NULL
) WITH (fillfactor = 50);

-- The newest token of each leader and lock.
CREATE TABLE fence (
  name       text   COLLATE "C" PRIMARY KEY,
  token      bigint NOT NULL, -- rises by one with each claim
  holder     text   NOT NULL,
  cluster    text   NOT NULL, -- the etcd cluster that revision counts in
  revision   bigint NOT NULL,
  claimed_ms bigint NOT NULL
) WITH (fillfactor = 50);
