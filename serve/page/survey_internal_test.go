package page

import (
	"context"
	"errors"
	"testing"
	"time"

	"example.org/slipway/web"
)

// TestSurveyFails checks that a failed survey is followed by another at the usual time, and that an
// earlier result does not count as current.
func TestSurveyFails(t *testing.T) {
	var fail error
	v := &surveyor{measure: func(context.Context) (*web.Survey, error) { return &web.Survey{Time: time.Now()}, fail }}
	defer v.close()
	// made waits for a survey and acts as if its timer had started the next.
	made := func() (armed, old bool) {
		v.wg.Wait()
		v.mu.Lock()
		defer v.mu.Unlock()
		armed, old = v.ticker != nil, v.old
		if armed {
			v.ticker.Stop()
			v.ticker = nil
		}
		return armed, old
	}
	if s, pending := v.known(); s != nil || pending {
		t.Errorf("before anybody looked there is %v, pending %v", s, pending)
	}
	if _, pending := v.last(); !pending {
		t.Fatal("no survey is begun")
	}
	if armed, old := made(); !armed || old {
		t.Errorf("after the first the next is armed: %v, it is out of date: %v", armed, old)
	}
	v.outdate()
	fail = errors.New("the catalogue is busy")
	if _, pending := v.last(); !pending {
		t.Fatal("nothing is begun after a change")
	}
	if armed, old := made(); !armed || !old {
		t.Errorf("after a failure the next is armed: %v, what there is is out of date: %v", armed, old)
	}
	if s, pending := v.known(); s == nil || pending {
		t.Errorf("after a failure there is %v, pending %v", s, pending)
	}
}
