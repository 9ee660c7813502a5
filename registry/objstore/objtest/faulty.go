package objtest

import (
	"context"
	"io"
	"iter"
	"time"

	"example.org/slipway/registry/objstore"
)

// These are the operations as the hooks of [Faults] name them. The key is the object's key. For
// OpResume and OpAbandon it is the upload's state. For OpNewUpload, OpWrite, OpSuspend, OpCancel
// and OpSweep it is empty.
const (
	OpGet       = "get"
	OpStat      = "stat"
	OpPut       = "put"
	OpDelete    = "delete"
	OpList      = "list" // once for the walk, with the prefix as key
	OpNewUpload = "new-upload"
	OpResume    = "resume"
	OpAbandon   = "abandon"
	OpSweep     = "sweep"
	OpRead      = "read" // each Read, and each WriteTo as a whole
	OpWrite     = "write"
	OpSuspend   = "suspend"
	OpCommit    = "commit"
	OpCancel    = "cancel"
	OpAdopt     = "adopt"
	OpMove      = "move" // with the object's first key
)

// Faults are the hooks of a faulty store. A nil hook does nothing. Hooks may be called
// concurrently. They may block to delay an operation.
type Faults struct {
	// Before is called before an operation. If it returns an error, the operation returns that
	// error and does not reach the store.
	Before func(op, key string) error
	// After is called after an operation that succeeded. If it returns an error, the operation
	// returns that error although the store performed it. A caller sees the same when the answer
	// was lost on the network.
	After func(op, key string) error
}

// Faulty returns a store that does what inner does unless a hook intervenes. It is an
// [objstore.UploadSweeper] if inner is one, and has the abilities of an [objstore.Adopter] and an
// [objstore.Mover] if inner has them.
func Faulty(inner objstore.Store, f Faults) objstore.Store {
	s := &faulty{inner, f}
	if sw, ok := inner.(objstore.UploadSweeper); ok {
		return &faultySweeper{s, sw}
	}
	return s
}

// around calls the function do between the hooks.
func (f *Faults) around(op, key string, do func() error) error {
	if f.Before != nil {
		if err := f.Before(op, key); err != nil {
			return err
		}
	}
	if err := do(); err != nil {
		return err
	}
	if f.After != nil {
		return f.After(op, key)
	}
	return nil
}

type faulty struct {
	inner objstore.Store
	f     Faults
}

func (s *faulty) Get(ctx context.Context, key string, off, n int64) (objstore.Object, error) {
	var o objstore.Object
	err := s.f.around(OpGet, key, func() (err error) {
		o, err = s.inner.Get(ctx, key, off, n)
		return err
	})
	if err != nil {
		if o != nil {
			_ = o.Close() // the caller gets the hook's error
		}
		return nil, err
	}
	return &faultyObject{o, &s.f}, nil
}

func (s *faulty) Stat(ctx context.Context, key string) (info objstore.Info, err error) {
	err = s.f.around(OpStat, key, func() (err error) {
		info, err = s.inner.Stat(ctx, key)
		return err
	})
	return info, err
}

func (s *faulty) Put(ctx context.Context, key string, data []byte, ifAbsent bool) error {
	return s.f.around(OpPut, key, func() error { return s.inner.Put(ctx, key, data, ifAbsent) })
}

func (s *faulty) Delete(ctx context.Context, key string) error {
	return s.f.around(OpDelete, key, func() error { return s.inner.Delete(ctx, key) })
}

func (s *faulty) List(ctx context.Context, prefix, after string) iter.Seq2[objstore.Info, error] {
	return func(yield func(objstore.Info, error) bool) {
		stopped := false
		err := s.f.around(OpList, prefix, func() error {
			for info, err := range s.inner.List(ctx, prefix, after) {
				if stopped = !yield(info, err); stopped {
					return nil
				}
			}
			return nil
		})
		if err != nil && !stopped {
			yield(objstore.Info{}, err)
		}
	}
}

func (s *faulty) NewUpload(ctx context.Context, sizeHint int64) (objstore.Upload, error) {
	return s.upload(OpNewUpload, "", func() (objstore.Upload, error) { return s.inner.NewUpload(ctx, sizeHint) })
}

// Resume leaves the upload suspended when After fails it.
func (s *faulty) Resume(ctx context.Context, state string, size int64) (objstore.Upload, error) {
	return s.upload(OpResume, state, func() (objstore.Upload, error) { return s.inner.Resume(ctx, state, size) })
}

func (s *faulty) upload(op, key string, do func() (objstore.Upload, error)) (objstore.Upload, error) {
	var u objstore.Upload
	err := s.f.around(op, key, func() (err error) {
		u, err = do()
		return err
	})
	if err != nil {
		if u != nil { // the caller does not get it; a resumed upload stays resumable
			_, _ = u.Suspend(context.Background())
		}
		return nil, err
	}
	return &faultyUpload{u, &s.f}, nil
}

func (s *faulty) Abandon(ctx context.Context, state string) error {
	return s.f.around(OpAbandon, state, func() error { return s.inner.Abandon(ctx, state) })
}

func (s *faulty) Close() error { return s.inner.Close() }

// Adapt implements [objstore.Adapter].
func (s *faulty) Adapt(target any) bool {
	switch t := target.(type) {
	case *objstore.Adopter:
		inner, ok := objstore.As[objstore.Adopter](s.inner)
		if ok {
			*t = &faultyAdopter{&s.f, inner}
		}
		return ok
	case *objstore.Mover:
		inner, ok := objstore.As[objstore.Mover](s.inner)
		if ok {
			*t = &faultyMover{&s.f, inner}
		}
		return ok
	}
	return false
}

type faultyMover struct {
	f     *Faults
	inner objstore.Mover
}

func (m *faultyMover) Move(ctx context.Context, from, to string) error {
	return m.f.around(OpMove, from, func() error { return m.inner.Move(ctx, from, to) })
}

type faultyAdopter struct {
	f     *Faults
	inner objstore.Adopter
}

func (a *faultyAdopter) AdoptFile(ctx context.Context, key, path string) error {
	return a.f.around(OpAdopt, key, func() error { return a.inner.AdoptFile(ctx, key, path) })
}

type faultySweeper struct {
	*faulty
	sw objstore.UploadSweeper
}

func (s *faultySweeper) SweepUploads(ctx context.Context, before time.Time, keep func(string) bool) (n int, bytes int64, err error) {
	err = s.f.around(OpSweep, "", func() (err error) {
		n, bytes, err = s.sw.SweepUploads(ctx, before, keep)
		return err
	})
	return n, bytes, err
}

type faultyObject struct {
	objstore.Object
	f *Faults
}

func (o *faultyObject) Read(p []byte) (n int, err error) {
	err = o.f.around(OpRead, o.Info().Key, func() (err error) {
		n, err = o.Object.Read(p)
		return err
	})
	return n, err
}

func (o *faultyObject) WriteTo(w io.Writer) (n int64, err error) {
	err = o.f.around(OpRead, o.Info().Key, func() (err error) {
		n, err = o.Object.WriteTo(w)
		return err
	})
	return n, err
}

type faultyUpload struct {
	u objstore.Upload
	f *Faults
}

func (u *faultyUpload) Size() int64 { return u.u.Size() }

func (u *faultyUpload) Write(p []byte) (n int, err error) {
	err = u.f.around(OpWrite, "", func() (err error) {
		n, err = u.u.Write(p)
		return err
	})
	return n, err
}

func (u *faultyUpload) Tag() string { return u.u.Tag() }

func (u *faultyUpload) Suspend(ctx context.Context) (state string, err error) {
	err = u.f.around(OpSuspend, "", func() (err error) {
		state, err = u.u.Suspend(ctx)
		return err
	})
	if err != nil {
		return "", err
	}
	return state, nil
}

// Commit ends the upload in any case, as the contract says.
func (u *faultyUpload) Commit(ctx context.Context, key string) error {
	err := u.f.around(OpCommit, key, func() error { return u.u.Commit(ctx, key) })
	if err != nil {
		_ = u.u.Cancel(ctx) // a no-op unless Before failed the commit
	}
	return err
}

func (u *faultyUpload) Cancel(ctx context.Context) error {
	return u.f.around(OpCancel, "", func() error { return u.u.Cancel(ctx) })
}
