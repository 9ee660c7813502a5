package formats

import (
	"time"

	"example.org/slipway/workload/trace"
	"example.org/slipway/workload/trace/logs/internal/values"
)

// parseNexus reads the request log of Nexus. It is the Common Log Format with the
// received bytes, if the line has them, the sent bytes, milliseconds and the user agent.
// The time is the end.
func parseNexus(l *Line, rec *trace.Record) error {
	rest, err := clfHead(l.Text, rec)
	if err != nil {
		return err
	}
	request, rest, ok := values.Quoted(rest)
	f := values.Fields(rest)
	if !ok || len(f) < 4 {
		return notUnderstood("there is no request, or too little after it")
	}
	if err := setRequest(request, rec); err != nil {
		return err
	}
	numbers := 1 // the status
	for numbers < len(f) && !f[numbers].Quoted {
		numbers++
	}
	if numbers < 3 || numbers > 4 || numbers == len(f) {
		return notUnderstood("there are %d numbers after the request", numbers)
	}
	received, sent, took := "-", f[numbers-2].Text, f[numbers-1].Text
	if numbers == 4 {
		received = f[1].Text
	}
	if err := setAnswer(f[0].Text, sent, rec); err != nil {
		return err
	}
	if err := setReceived(received, rec); err != nil {
		return err
	}
	if !values.IsDigits(took) {
		return notUnderstood("the duration is %.40q", took)
	}
	rec.UserAgent = values.Dash(f[numbers].Text)
	return ended(took, time.Millisecond, rec)
}
