package pg

import "testing"

func TestRebind(t *testing.T) {
	for in, want := range map[string]string{
		`SELECT a FROM b WHERE c = ? AND d IN (?, ?)`:           `SELECT a FROM b WHERE c = $1 AND d IN ($2, $3)`,
		`UPDATE a SET b = ?1 WHERE b < ?1 AND c = ?2`:           `UPDATE a SET b = $1 WHERE b < $1 AND c = $2`,
		`SELECT '?' || ? || 'it''s ?'`:                          `SELECT '?' || $1 || 'it''s ?'`,
		`SELECT 1 FROM a CROSS JOIN b ON b.i = a.i WHERE a = ?`: `SELECT 1 FROM a JOIN b ON b.i = a.i WHERE a = $1`,
	} {
		if got := rebind(in); got != want {
			t.Errorf("%s became %s, want %s", in, got, want)
		}
	}
}
