package s3store

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"encoding/base32"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"

	"example.org/slipway/registry/objstore"
)

// A suspended upload is the object <id>/state-<writer>-<bytes>: the JSON form of record, a
// newline, and that many bytes that follow the parts. Its state is <id>.<writer>.<bytes>. So
// the state gives the object's name, and the name gives the number of the upload's bytes in the
// object.

const (
	// stateVersion is the version of record.
	stateVersion = 1
	// maxRecord bounds a record, in bytes. A record of 10,000 parts takes a tenth of it.
	maxRecord = 8 << 20
	// maxUploadID bounds the id that a server gave a multipart upload, in bytes.
	maxUploadID = 1024
	// idLength is the length of ids and writers, in characters of base32.
	idLength = 26
)

// stateID is the parsed state of a suspended upload.
type stateID struct {
	id, writer string
	tail       int64 // bytes in the state object
}

func (s stateID) String() string {
	return s.id + "." + s.writer + "." + strconv.FormatInt(s.tail, 10)
}

// name returns the object's name below the directory of uploads.
func (s stateID) name() string {
	return s.id + "/state-" + s.writer + "-" + strconv.FormatInt(s.tail, 10)
}

// parseState reads what String wrote. Nothing else is a state.
func parseState(state string) (stateID, bool) {
	id, rest, _ := strings.Cut(state, ".")
	writer, size, _ := strings.Cut(rest, ".")
	tail, ok := parseSize(size)
	return stateID{id: id, writer: writer, tail: tail}, ok && validID(id) && validID(writer)
}

// parseStateName reads the last part of the name of a state object.
func parseStateName(id, base string) (stateID, bool) {
	rest, ok := strings.CutPrefix(base, "state-")
	if !ok {
		return stateID{}, false
	}
	return parseState(id + "." + strings.Replace(rest, "-", ".", 1))
}

// parseSize reads a number as FormatInt writes it: no sign and no leading zeros.
func parseSize(s string) (int64, bool) {
	n, err := strconv.ParseInt(s, 10, 64)
	return n, err == nil && n >= 0 && n <= maxPart && strconv.FormatInt(n, 10) == s
}

// validID reports whether id could be one that rand.Text or keyedID makes.
func validID(id string) bool {
	for i := range len(id) {
		if c := id[i]; !('A' <= c && c <= 'Z' || '2' <= c && c <= '7') {
			return false
		}
	}
	return len(id) == idLength
}

// keyedID returns the staging id of a multipart upload. By it, a sweep finds out whether
// the multipart upload belongs to an upload that somebody still claims.
func keyedID(key, uploadID string) string {
	sum := sha256.Sum256([]byte(key + "\n" + uploadID))
	return base32.StdEncoding.EncodeToString(sum[:])[:idLength]
}

// segment is a stored part of an upload.
type segment struct {
	// Name is the object's name below the upload's directory. It is "" in a multipart
	// upload.
	Name string `json:"name,omitempty"`
	// ETag is the ETag of a part in a multipart upload.
	ETag string `json:"etag,omitempty"`
	// Size is how many of its bytes belong to the upload, from its beginning.
	Size int64 `json:"size"`
}

// record is what a suspended upload needs beside its bytes.
type record struct {
	Version int `json:"version"`
	// Part is the size of its next parts before they grow, in bytes.
	Part int64 `json:"part"`
	// Key is where the upload will be, if that is known. UploadID is the id of the
	// multipart upload there, and "" before the first part.
	Key      string    `json:"key,omitempty"`
	UploadID string    `json:"uploadId,omitempty"`
	Segments []segment `json:"segments,omitempty"`
	// Before is the state that this one replaces. It is dropped when somebody resumes
	// this state, which shows that this one has been noted.
	Before string `json:"before,omitempty"`
}

// stored returns how many bytes are in segments.
func (r *record) stored() (n int64) {
	for _, seg := range r.Segments {
		n += seg.Size
	}
	return n
}

// encode returns the record with its newline.
func (r *record) encode() ([]byte, error) {
	b, err := json.Marshal(r)
	if err != nil {
		return nil, fmt.Errorf("encode upload state: %w", err)
	}
	return append(b, '\n'), nil
}

// decodeRecord reads a record and leaves r after its newline.
func decodeRecord(r *bufio.Reader) (*record, error) {
	line, err := readLine(r, maxRecord)
	if err != nil {
		return nil, err
	}
	var rec record
	d := json.NewDecoder(bytes.NewReader(line))
	d.DisallowUnknownFields()
	if err := d.Decode(&rec); err != nil {
		return nil, fmt.Errorf("decode upload state: %w", err)
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return nil, errors.New("decode upload state: more than one value")
	}
	if err := rec.check(); err != nil {
		return nil, fmt.Errorf("decode upload state: %w", err)
	}
	return &rec, nil
}

// check returns an error for a record that this package would not write. A record that
// others wrote must not name objects elsewhere.
func (r *record) check() error {
	switch {
	case r.Version != stateVersion:
		return fmt.Errorf("version %d is not known", r.Version)
	case r.Part < minPart || r.Part > maxPart:
		return fmt.Errorf("part size is %d", r.Part)
	case len(r.Segments) > maxParts:
		return fmt.Errorf("%d parts", len(r.Segments))
	case r.Key == "" && r.UploadID != "", len(r.UploadID) > maxUploadID:
		return errors.New("multipart upload without a key")
	case r.UploadID == "" && r.Key != "" && len(r.Segments) > 0:
		return errors.New("parts without a multipart upload")
	}
	if r.Key != "" {
		if err := objstore.CheckKey(r.Key); err != nil {
			return err
		}
		if strings.HasPrefix(r.Key+"/", uploadDir) {
			return errors.New("key is one of an upload")
		}
	}
	if _, ok := parseState(r.Before); r.Before != "" && !ok {
		return errors.New("state before is none")
	}
	for i, seg := range r.Segments {
		if seg.Size < minPart || seg.Size > maxPart {
			return fmt.Errorf("part %d has %d bytes", i, seg.Size)
		}
		if r.UploadID == "" && (!validSegment(seg.Name) || seg.ETag != "") ||
			r.UploadID != "" && (seg.Name != "" || seg.ETag == "" || len(seg.ETag) > maxUploadID) {
			return fmt.Errorf("part %d is %q, %q", i, seg.Name, seg.ETag)
		}
	}
	return nil
}

// segmentName returns the name of the n-th object that a writer stores.
func segmentName(n int, writer string) string { return fmt.Sprintf("%05d-%s", n, writer) }

func validSegment(name string) bool {
	n, writer, ok := strings.Cut(name, "-")
	if !ok || len(n) != 5 || !validID(writer) {
		return false
	}
	for i := range len(n) {
		if n[i] < '0' || n[i] > '9' {
			return false
		}
	}
	return true
}

// readLine reads up to a newline, but no more than the given number of bytes.
func readLine(r *bufio.Reader, most int) ([]byte, error) {
	var line []byte
	for {
		piece, err := r.ReadSlice('\n')
		line = append(line, piece...)
		switch {
		case len(line) > most:
			return nil, errors.New("decode upload state: record is too long")
		case err == nil:
			return line, nil
		case errors.Is(err, io.EOF):
			return nil, io.ErrUnexpectedEOF
		case !errors.Is(err, bufio.ErrBufferFull):
			return nil, err
		}
	}
}
