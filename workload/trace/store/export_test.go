package store

// SetMaxRuns changes after how many runs of a day they are merged.
func (w *Writer) SetMaxRuns(n int) { w.maxRuns = n }

// SetMaxGroup changes how many rows a row group may have, which is less than readers take.
func (w *Writer) SetMaxGroup(n int) { w.maxGroup = n }
