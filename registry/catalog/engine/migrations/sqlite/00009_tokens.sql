-- API tokens of robots.

-- +goose Up
-- One row a token that is not revoked. The token itself is nowhere: hash is its SHA-256.
-- A robot may have several tokens. The catalogue does not know the meaning of rights.
CREATE TABLE api_tokens (
    token_id   TEXT PRIMARY KEY,
    robot      TEXT NOT NULL,
    hash       BLOB NOT NULL,
    rights     TEXT NOT NULL,
    creator    TEXT NOT NULL,
    created_at BIGINT NOT NULL,
    -- 0: it does not expire
    expires_at BIGINT NOT NULL,
    -- last use, written in batches; 0 never
    used_at    BIGINT NOT NULL
) WITHOUT ROWID;
CREATE INDEX api_tokens_robot ON api_tokens (robot);

-- +goose Down
DROP TABLE api_tokens;
