package workload

import "testing"

// TestShareOf checks that a small number without a unit is refused, since it could be a
// share or bytes. Every other value means what it says.
func TestShareOf(t *testing.T) {
	const whole = 1000 << 20
	for text, want := range map[string]int64{
		"2%": 20 << 20, "0.5%": 5 << 20, "100%": whole, "2 ": -1, "2": -1, "0.5": -1, "10": -1, "1000000": -1, "2B": 2, "2kB": 2000, "16GiB": 16 << 30,
		"0": 0, "2097152": 2 << 20, "x": -1, "%": -1, "-1%": -1, "": -1,
	} {
		got, err := shareOf(text, "%", 0.01, whole)
		if want < 0 && err == nil || want >= 0 && (err != nil || got != want) {
			t.Errorf("%q of %d bytes is %d, %v; want %d", text, whole, got, err, want)
		}
	}
	if _, err := shareOf("10", "x", 1, whole); err == nil {
		t.Error("10 is taken for 10 bytes of SSD")
	}
}
