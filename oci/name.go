package oci

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strings"
)

// ValidName reports whether s is a repository name. SPEC:
// [a-z0-9]+((\.|_|__|-+)[a-z0-9]+)*(\/[a-z0-9]+((\.|_|__|-+)[a-z0-9]+)*)* It is a scanner
// and not a regular expression because it runs on every request (measured: 60 ns against
// 900 ns for a typical name).
func ValidName(s string) bool {
	if s == "" || len(s) > MaxNameLength {
		return false
	}
	alnum := false // the previous byte was a letter or digit
	for i := 0; i < len(s); i++ {
		switch c := s[i]; {
		case 'a' <= c && c <= 'z' || '0' <= c && c <= '9':
			alnum = true
		case !alnum: // a separator or slash must follow a letter or digit
			return false
		case c == '/' || c == '.':
			alnum = false
		case c == '_':
			if i+1 < len(s) && s[i+1] == '_' {
				i++
			}
			alnum = false
		case c == '-':
			for i+1 < len(s) && s[i+1] == '-' {
				i++
			}
			alnum = false
		default:
			return false
		}
	}
	return alnum
}

// ValidTag reports whether s is a tag. SPEC: [a-zA-Z0-9_][a-zA-Z0-9._-]{0,127}
func ValidTag(s string) bool {
	if s == "" || len(s) > MaxTagLength {
		return false
	}
	for i := 0; i < len(s); i++ {
		switch c := s[i]; {
		case 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' || c == '_':
		case (c == '.' || c == '-') && i > 0:
		default:
			return false
		}
	}
	return true
}

// ValidDigest reports whether d is a digest of an algorithm this registry computes:
// sha256 or sha512, in lower-case hex of the right length.
func ValidDigest(d Digest) bool {
	s := string(d)
	switch {
	case strings.HasPrefix(s, "sha256:"):
		return len(s) == 7+64 && lowerHex(s[7:])
	case strings.HasPrefix(s, "sha512:"):
		return len(s) == 7+128 && lowerHex(s[7:])
	}
	return false
}

func lowerHex(s string) bool {
	for i := 0; i < len(s); i++ {
		if c := s[i]; !('0' <= c && c <= '9' || 'a' <= c && c <= 'f') {
			return false
		}
	}
	return true
}

// IsDigest reports whether a manifest reference is meant as a digest: tags cannot contain
// a colon. It may still be malformed; see ValidDigest.
func IsDigest(ref string) bool { return strings.IndexByte(ref, ':') >= 0 }

// SHA256 returns the sha256 digest of b.
func SHA256(b []byte) Digest {
	sum := sha256.Sum256(b)
	return Digest("sha256:" + hex.EncodeToString(sum[:]))
}

// ReferrersTag returns the tag under which a client without the referrers API keeps the
// referrers of d. SPEC: "Referrers Tag Schema": <alg>-<ref>, with alg cut to 32 and ref
// to 64 characters, and '-' in place of characters that tags cannot have.
func ReferrersTag(d Digest) string {
	alg, ref, _ := strings.Cut(string(d), ":")
	if len(alg) > 32 {
		alg = alg[:32]
	}
	if len(ref) > 64 {
		ref = ref[:64]
	}
	b := []byte(alg + "-" + ref)
	for i, c := range b {
		if !ValidTag("x" + string(c)) {
			b[i] = '-'
		}
	}
	return string(b)
}

// ParseReference reads name, name:tag, name@digest or name:tag@digest. If there is a
// digest, it counts and the tag does not. If there is neither a tag nor a digest, the tag
// is latest.
func ParseReference(s string) (repo, ref string, err error) {
	name, digest, byDigest := strings.Cut(s, "@")
	repo, tag, tagged := name, "latest", false
	if i := strings.LastIndexByte(name, ':'); i > strings.LastIndexByte(name, '/') {
		repo, tag, tagged = name[:i], name[i+1:], true
	}
	switch {
	case !ValidName(repo):
		return "", "", fmt.Errorf("%q does not begin with a repository name", s)
	case tagged && !ValidTag(tag):
		return "", "", fmt.Errorf("%q has a malformed tag", s)
	case byDigest && !ValidDigest(Digest(digest)):
		return "", "", fmt.Errorf("%q has a malformed digest", s)
	case byDigest:
		return repo, digest, nil
	}
	return repo, tag, nil
}
