package command

import (
	"fmt"
	"io"
	"os"
	"strings"
)

// maxSecret is the most bytes of a secret that are read. It is longer than any secret that is
// accepted later.
const maxSecret = 64 << 10

// ReadSecret reads a password or another secret from a file, or from in if file is "-". It
// removes line breaks at the end, and refuses an empty secret. If others than the owner may
// access the file, it warns on standard error.
func ReadSecret(file string, in io.Reader) (string, error) {
	name := file
	if file == "-" {
		name = "standard input"
	} else {
		f, err := os.Open(file)
		if err != nil {
			return "", fmt.Errorf("read the secret: %w", err)
		}
		defer f.Close()
		if info, err := f.Stat(); err == nil && info.Mode().Perm()&0o077 != 0 {
			fmt.Fprintf(os.Stderr, "warning: the secret in %s is accessible to others than its owner\n", file)
		}
		in = f
	}
	b, err := io.ReadAll(io.LimitReader(in, maxSecret))
	if err != nil {
		return "", fmt.Errorf("read the secret: %w", err)
	}
	secret := strings.TrimRight(string(b), "\r\n")
	if secret == "" {
		return "", Usagef("the secret in %s is empty", name)
	}
	return secret, nil
}

// ReadOptionalSecret reads a secret as ReadSecret does. It returns "" if file is "".
func ReadOptionalSecret(file string) (string, error) {
	if file == "" {
		return "", nil
	}
	return ReadSecret(file, os.Stdin)
}
