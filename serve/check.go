package serve

import (
	"errors"
	"fmt"

	"example.org/slipway/config"
	"example.org/slipway/registry/auth"
	"example.org/slipway/registry/notify"
	"example.org/slipway/serve/dataroot"
)

// authProblem says to which place in the configuration an error of auth.New belongs.
func authProblem(cfg *config.Config, err error) error {
	var m *auth.ConfigError
	if errors.As(err, &m) {
		return cfg.Problem(m.Key, m.Err.Error())
	}
	return fmt.Errorf("set up auth: %w", err)
}

// CheckFiles opens the files that a valid configuration names (certificates, password
// files, keys, rules) and reports what is wrong with them. It changes nothing.
func CheckFiles(cfg *config.Config) error {
	if err := dataroot.Check(cfg); err != nil {
		return err
	}
	if _, err := redirectRules(&cfg.Storage.Redirect); err != nil {
		return err
	}
	if cfg.HTTP.TLS.Enabled() {
		c := &certificates{cfg: &cfg.HTTP.TLS}
		if _, err := c.load(); err != nil {
			return err
		}
	}
	whole := cfg
	if t := cfg.Auth.Token; t != nil && t.Key != "" {
		// auth.New would create a missing key.
		token := *t
		token.Key = ""
		cfg = &config.Config{Auth: cfg.Auth, Notifications: cfg.Notifications}
		cfg.Auth.Token = &token
	}
	a, err := auth.New(cfg.Auth, nil)
	if err != nil {
		return authProblem(whole, err)
	}
	if err := a.Close(); err != nil {
		return err
	}
	if _, err := notify.New(cfg.Notifications.Endpoints, notify.NewMemQueue(1), nil); err != nil {
		return fmt.Errorf("notifications: %w", err)
	}
	return nil
}
