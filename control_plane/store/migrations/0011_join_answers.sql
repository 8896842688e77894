-- What a used join token was answered with: whoever asks again with the same key is given the same once more.
CREATE TABLE join_answers (
    token_id TEXT PRIMARY KEY REFERENCES join_tokens (id) ON DELETE CASCADE,
    -- SHA-256 of the public key (DER of its SubjectPublicKeyInfo) that the token was used with.
    key_sha256 TEXT NOT NULL,
    serial TEXT NOT NULL,
    -- PEM.
    certificate TEXT NOT NULL
);
