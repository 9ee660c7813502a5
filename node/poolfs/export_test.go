package poolfs

// Pid returns the worker's process id. It returns 0 between workers.
func (h *Holder) Pid() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.worker == nil {
		return 0
	}
	return h.worker.Pid
}
