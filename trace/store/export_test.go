package store

// SetMaxRuns changes after how many runs of a day they are merged.
func (w *Writer) SetMaxRuns(n int) { w.maxRuns = n }
