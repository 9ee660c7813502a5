package api

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"net/http"

	"example.org/slipway/node/gearfs"
	"example.org/slipway/oci/client/wrongserver"
)

// Service is what an agent does for its callers. It has the same methods as a Caller.
type Service interface {
	Status(ctx context.Context) Status
	Mount(ctx context.Context, req MountRequest) (*MountAnswer, error)
	Umount(dir string) error
	MapVolume(ctx context.Context, req MapRequest) (*MapAnswer, error)
	UnmapVolume(image string) error
	Explain(ctx context.Context, image string) (Explanation, error)
	Profile(image string) (*ProfileAnswer, error)
	DropProfile(image string) error
	Verify(ctx context.Context) (VerifyAnswer, error)
	Stop(req StopRequest) error
}

const (
	pathMount   = "/v1/mount"
	pathUmount  = "/v1/umount"
	pathStatus  = "/v1/status"
	pathProfile = "/v1/profile"
	pathVerify  = "/v1/verify"
	pathStop    = "/v1/stop"
	pathExplain = "/v1/explain"
	pathMap     = "/v1/volume/map"
	pathUnmap   = "/v1/volume/unmap"
	// maxRequest and maxAnswer bound how many bytes of a request and of an answer are read.
	maxRequest = 1 << 20
	maxAnswer  = 64 << 20
)

// Handler serves a Service.
func Handler(s Service) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET "+pathStatus, answer(func(r *http.Request, _ struct{}) (Status, error) { return s.Status(r.Context()), nil }))
	mux.HandleFunc("POST "+pathMount, answer(func(r *http.Request, req MountRequest) (*MountAnswer, error) { return s.Mount(r.Context(), req) }))
	mux.HandleFunc("POST "+pathUmount, answer(func(_ *http.Request, req MountRequest) (struct{}, error) { return struct{}{}, s.Umount(req.Dir) }))
	mux.HandleFunc("POST "+pathStop, answer(func(_ *http.Request, req StopRequest) (struct{}, error) { return struct{}{}, s.Stop(req) }))
	mux.HandleFunc("GET "+pathExplain, answer(func(r *http.Request, _ struct{}) (Explanation, error) {
		return s.Explain(r.Context(), r.URL.Query().Get("image"))
	}))
	mux.HandleFunc("GET "+pathProfile, answer(func(r *http.Request, _ struct{}) (*ProfileAnswer, error) {
		return s.Profile(r.URL.Query().Get("image"))
	}))
	mux.HandleFunc("DELETE "+pathProfile, answer(func(r *http.Request, _ struct{}) (struct{}, error) {
		return struct{}{}, s.DropProfile(r.URL.Query().Get("image"))
	}))
	mux.HandleFunc("POST "+pathMap, answer(func(r *http.Request, req MapRequest) (*MapAnswer, error) { return s.MapVolume(r.Context(), req) }))
	mux.HandleFunc("POST "+pathUnmap, answer(func(_ *http.Request, req MapRequest) (struct{}, error) {
		return struct{}{}, s.UnmapVolume(req.Image)
	}))
	mux.HandleFunc("POST "+pathVerify, answer(func(r *http.Request, _ struct{}) (VerifyAnswer, error) { return s.Verify(r.Context()) }))
	return mux
}

// answer makes a handler from a function that takes and returns JSON.
func answer[In, Out any](do func(*http.Request, In) (Out, error)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		var in In
		if r.Method == http.MethodPost {
			err := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxRequest)).Decode(&in)
			if err != nil && !errors.Is(err, io.EOF) {
				http.Error(w, err.Error(), http.StatusBadRequest)
				return
			}
		}
		out, err := do(r, in)
		switch {
		case errors.Is(err, fs.ErrNotExist) || errors.Is(err, gearfs.ErrUnknown):
			http.Error(w, err.Error(), http.StatusNotFound)
		case err != nil:
			http.Error(w, err.Error()+wrongserver.Advice(err), http.StatusUnprocessableEntity)
		default:
			w.Header().Set("Content-Type", "application/json")
			_ = json.NewEncoder(w).Encode(out) // the caller is gone
		}
	}
}
