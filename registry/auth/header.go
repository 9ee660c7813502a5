package auth

import (
	"encoding/base64"
	"errors"
	"strings"
)

// maxCredentialBytes bounds an Authorization header. A token with many groups can have a
// few KiB.
const maxCredentialBytes = 32 << 10

var (
	errHeaderScheme = errors.New("the Authorization header is neither Basic nor Bearer")
	errHeaderBasic  = errors.New("the Basic credentials are malformed")
	errHeaderBearer = errors.New("the Bearer token is malformed")
	errHeaderLong   = errors.New("the Authorization header is too long")
)

// credentials are the contents of an Authorization header.
type credentials struct {
	bearer bool
	user   string // Basic only
	secret string // the password or the token
}

// parseAuthorization parses an Authorization header. Its errors never quote the header.
func parseAuthorization(h string) (credentials, error) {
	if len(h) > maxCredentialBytes {
		return credentials{}, errHeaderLong
	}
	scheme, rest, _ := strings.Cut(h, " ")
	rest = strings.Trim(rest, " ")
	switch {
	case strings.EqualFold(scheme, "basic"):
		return parseBasic(rest)
	case strings.EqualFold(scheme, "bearer"):
		if !token68(rest) {
			return credentials{}, errHeaderBearer
		}
		return credentials{bearer: true, secret: rest}, nil
	}
	return credentials{}, errHeaderScheme
}

// parseBasic decodes user:password. By RFC 7617 neither part contains control characters,
// and the user contains no colon.
func parseBasic(s string) (credentials, error) {
	b, err := base64.StdEncoding.DecodeString(s)
	if err != nil {
		return credentials{}, errHeaderBasic
	}
	for _, c := range b {
		if c < ' ' || c == 0x7f {
			return credentials{}, errHeaderBasic
		}
	}
	user, password, ok := strings.Cut(string(b), ":")
	if !ok {
		return credentials{}, errHeaderBasic
	}
	return credentials{user: user, secret: password}, nil
}

// token68 reports whether s has the syntax of a token in RFC 6750.
func token68(s string) bool {
	s = strings.TrimRight(s, "=")
	for i := 0; i < len(s); i++ {
		c := s[i]
		if !('a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9') && strings.IndexByte("-._~+/", c) < 0 {
			return false
		}
	}
	return s != ""
}
