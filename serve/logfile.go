package serve

import (
	"os"
	"sync"
)

// logFile is a log that can be rotated.
type logFile struct {
	path string
	mu   sync.Mutex
	f    *os.File
}

// openLogFile opens a log for appending. The umask decides whether the file's group may
// read it.
func openLogFile(path string) (*logFile, error) {
	l := &logFile{path: path}
	return l, l.reopen()
}

func (l *logFile) reopen() error {
	f, err := os.OpenFile(l.path, os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o640)
	if err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	old := l.f
	l.f = f
	if old != nil {
		return old.Close()
	}
	return nil
}

// Write implements io.Writer.
func (l *logFile) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.f.Write(p)
}

// Close implements io.Closer.
func (l *logFile) Close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.f.Close()
}
