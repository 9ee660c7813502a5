package trace

import "fmt"

// Bad says why a record was skipped.
type Bad string

// These are the reasons why records are skipped.
const (
	BadSyntax    Bad = "syntax error"
	BadType      Bad = "wrong type"
	BadMissing   Bad = "missing field"
	BadNumber    Bad = "impossible number"
	BadTime      Bad = "no time"
	BadLength    Bad = "too long"
	BadTruncated Bad = "truncated"
	// BadLine is a line that cannot be of the format, such as one with a field that cannot
	// be a client, a time or a size.
	BadLine Bad = "not understood"
	// BadRepeated is a file that repeats the requests of another.
	BadRepeated Bad = "logged elsewhere too"
	// BadFile is a file that is damaged, or whose format is not known.
	BadFile Bad = "unreadable file"
	// BadOther is a line about something else than a request; it is not an error.
	BadOther Bad = "not a request"
)

// BadRecord is the error of a record that is skipped.
type BadRecord struct {
	Kind Bad
	Why  string
}

func (e *BadRecord) Error() string { return string(e.Kind) + ": " + e.Why }

// Errorf makes a [BadRecord] of the kind.
func (kind Bad) Errorf(format string, args ...any) error {
	return &BadRecord{kind, fmt.Sprintf(format, args...)}
}
