package yamlfile

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
)

// maxSecretBytes bounds the size of a file that ${file:...} names. A key or token is far
// smaller. A wrong path to a large file must not fill the memory.
const maxSecretBytes = 64 << 10

// ReadSecretFile reads a small regular file.
func ReadSecretFile(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if !st.Mode().IsRegular() {
		return nil, fmt.Errorf("%s is not a regular file", path)
	}
	b, err := io.ReadAll(io.LimitReader(f, maxSecretBytes+1))
	if err != nil {
		return nil, err
	}
	if len(b) > maxSecretBytes {
		return nil, fmt.Errorf("%s is larger than %d bytes", path, maxSecretBytes)
	}
	return b, nil
}

// Expander replaces ${file:...} and ${env:...} in texts.
type Expander struct {
	Env      map[string]string
	ReadFile func(string) ([]byte, error)
}

var errUnclosed = errors.New("${file: or ${env: without a closing brace")

// expand returns s with its references replaced. Its errors name files and variables, but
// never their content.
func (x *Expander) expand(s string) (string, error) {
	var b strings.Builder
	for {
		i := strings.Index(s, "${")
		if i < 0 {
			b.WriteString(s)
			return b.String(), nil
		}
		kind := ""
		for _, k := range []string{"file:", "env:"} {
			if strings.HasPrefix(s[i+2:], k) {
				kind = k
			}
		}
		if kind == "" {
			b.WriteString(s[:i+2])
			s = s[i+2:]
			continue
		}
		if i > 0 && s[i-1] == '$' { // "$${file:" is the text "${file:"
			b.WriteString(s[:i-1] + "${")
			s = s[i+2:]
			continue
		}
		end := strings.IndexByte(s[i:], '}')
		if end < 0 {
			return "", errUnclosed
		}
		val, err := x.lookup(kind, s[i+2+len(kind):i+end])
		if err != nil {
			return "", err
		}
		b.WriteString(s[:i] + val)
		s = s[i+end+1:]
	}
}

func (x *Expander) lookup(kind, name string) (string, error) {
	if kind == "env:" {
		val, ok := x.Env[name]
		if !ok {
			return "", fmt.Errorf("environment variable %s is not set", name)
		}
		return val, nil
	}
	b, err := x.ReadFile(name)
	if err != nil {
		return "", fmt.Errorf("read the file it names: %w", err)
	}
	return strings.TrimSuffix(strings.TrimSuffix(string(b), "\n"), "\r"), nil
}
