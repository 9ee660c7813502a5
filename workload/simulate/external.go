package simulate

import (
	"context"
	"encoding/binary"
	"fmt"
	"strconv"
	"strings"

	"example.org/slipway/internal/policy"
	"example.org/slipway/workload/plugin"
)

// externalPrefix begins the name of a policy that is a program: exec:./mine.py.
const externalPrefix = "exec:"

// external returns the path of the program that is a policy, if the name stands for a
// program.
func external(name string) (program string, ok bool) {
	return strings.CutPrefix(name, externalPrefix)
}

// externalPolicy is a policy that a program decides. docs/simulation.md describes the lines. Its
// methods cannot return errors: after one, nothing is admitted any more, and Err says why.
type externalPolicy struct {
	process *plugin.Process
	held    map[uint64]*policy.Entry
	line    []byte
}

var _ policy.Policy = (*externalPolicy)(nil)

// newExternal starts the program.
func newExternal(ctx context.Context, program string) (*externalPolicy, error) {
	p, err := plugin.Start(ctx, program, "policy", "")
	if err != nil {
		return nil, err
	}
	return &externalPolicy{process: p, held: map[uint64]*policy.Entry{}}, nil
}

// number returns the number of a layer in the lines.
func number(e *policy.Entry) uint64 { return binary.LittleEndian.Uint64(e.Key[:8]) }

// tell sends {"EVENT":[NUMBERS...]}. The error of a program that is gone stays in the process.
func (p *externalPolicy) tell(event string, numbers ...int64) {
	p.line = append(p.line[:0], `{"`...)
	p.line = append(p.line, event...)
	p.line = append(p.line, `":[`...)
	for i, n := range numbers {
		if i > 0 {
			p.line = append(p.line, ',')
		}
		p.line = strconv.AppendInt(p.line, n, 10)
	}
	p.line = append(p.line, "]}"...)
	_ = p.process.Send(p.line)
}

func (p *externalPolicy) SetLimit(limit int64)     { p.tell("limit", limit) }
func (p *externalPolicy) Offer(*policy.Entry) bool { return p.process.Err() == nil }
func (p *externalPolicy) Hit(e *policy.Entry)      { p.tell("hit", int64(number(e)), e.Size) }

func (p *externalPolicy) Add(e *policy.Entry) {
	p.held[number(e)] = e
	p.tell("add", int64(number(e)), e.Size)
}

func (p *externalPolicy) Remove(e *policy.Entry) {
	delete(p.held, number(e))
	p.tell("remove", int64(number(e)), e.Size)
}

// Evict asks the program. The answer is the number of a layer that the program holds, or
// of the layer that needs the room.
func (p *externalPolicy) Evict(forEntry *policy.Entry) *policy.Entry {
	if len(p.held) == 0 {
		return nil
	}
	p.tell("evict", int64(number(forEntry)), forEntry.Size)
	var victim uint64
	if p.process.Receive(&victim) != nil || victim == number(forEntry) {
		return forEntry
	}
	e := p.held[victim]
	if e == nil {
		p.process.Refuse(fmt.Errorf("it wants to evict layer %d, which is not in the cache", victim))
		return forEntry
	}
	delete(p.held, victim)
	return e
}
