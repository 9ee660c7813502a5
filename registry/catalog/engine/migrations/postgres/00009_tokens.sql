-- API tokens of robots.

-- +goose Up
-- One row a token that is not revoked. The token itself is nowhere: hash is its SHA-256.
-- A robot may have several tokens. The catalogue does not know the meaning of rights.
CREATE TABLE api_tokens (
    token_id   TEXT COLLATE "C" PRIMARY KEY,
    robot      TEXT COLLATE "C" NOT NULL,
    hash       BYTEA NOT NULL,
    rights     TEXT COLLATE "C" NOT NULL,
    creator    TEXT COLLATE "C" NOT NULL,
    created_at BIGINT NOT NULL,
    -- 0: it does not expire
    expires_at BIGINT NOT NULL,
    -- last use, written in batches; 0 never
    used_at    BIGINT NOT NULL
);
CREATE INDEX api_tokens_robot ON api_tokens (robot);

-- +goose Down
DROP TABLE api_tokens;
