package measure

import (
	"context"
	"errors"
	"testing"
	"time"
)

func TestClients(t *testing.T) {
	done := make([]bool, 100)
	o, err := Clients{N: 3, Limit: 100, Do: func(_ context.Context, _ *Worker, i int) (int64, error) {
		done[i] = true // each number is given out once
		return 2, nil
	}}.Run(t.Context())
	if err != nil || len(o.Took) != 100 || o.Bytes != 200 || o.Ms(0.5) > o.Ms(1) {
		t.Errorf("%d operations, %d bytes, median %v ms of %v, %v", len(o.Took), o.Bytes, o.Ms(0.5), o.Ms(1), err)
	}
	for i, ok := range done {
		if !ok {
			t.Errorf("operation %d was not done", i)
		}
	}
	failure := errors.New("no")
	_, err = Clients{N: 3, Least: time.Hour, Do: func(_ context.Context, _ *Worker, i int) (int64, error) {
		if i == 5 {
			return 0, failure
		}
		return 0, nil
	}}.Run(t.Context())
	if !errors.Is(err, failure) {
		t.Errorf("error %v, want the operation's", err)
	}
	// On a busy machine the time can be over before a client begins.
	o, err = Clients{N: 3, Least: time.Nanosecond, Do: func(context.Context, *Worker, int) (int64, error) { return 1, nil }}.Run(t.Context())
	if err != nil || len(o.Took) < 3 {
		t.Errorf("clients without time did %d operations, %v", len(o.Took), err)
	}
}
