package objstore

import "fmt"

// Limits of keys, in bytes.
const (
	// MaxKeyLength is the longest key.
	MaxKeyLength = 512
	// MaxSegmentLength is the longest segment of a key: NAME_MAX of every
	// common Linux file system.
	MaxSegmentLength = 255
)

// CheckKey returns an error unless key is one that a [Store] takes. The error
// holds the key quoted, so it can be shown.
func CheckKey(key string) error {
	if key == "" {
		return fmt.Errorf("key is empty")
	}
	if len(key) > MaxKeyLength {
		return fmt.Errorf("key of %d bytes is longer than %d", len(key), MaxKeyLength)
	}
	start := 0
	for i := 0; i <= len(key); i++ {
		if i < len(key) && key[i] != '/' {
			if !keyByte(key[i]) {
				return fmt.Errorf("key %q holds byte %q", key, key[i])
			}
			continue
		}
		switch seg := key[start:i]; {
		case seg == "" || seg == "." || seg == "..":
			return fmt.Errorf("key %q has segment %q", key, seg)
		case len(seg) > MaxSegmentLength:
			return fmt.Errorf("key %q has a segment of more than %d bytes", key, MaxSegmentLength)
		}
		start = i + 1
	}
	return nil
}

// keyByte reports whether c may stand in a segment: [A-Za-z0-9._=+-].
func keyByte(c byte) bool {
	switch {
	case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9':
		return true
	case c == '.', c == '_', c == '=', c == '+', c == '-':
		return true
	}
	return false
}
