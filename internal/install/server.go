package install

import (
	"fmt"
	"slices"
)

// A Server is a server that a host runs.
type Server struct {
	Command []string
	Env     []Variable
	// Pass has names of variables that the server gets from the host's environment.
	Pass []string
}

// A Variable is a variable of the environment.
type Variable struct{ Name, Value string }

// env returns the variables of a server as the file has them.
func (h *Host) env(s *Server) ([]Variable, error) {
	all := slices.Clone(s.Env)
	for _, name := range s.Pass {
		switch {
		case h.form.toml: // has a member of its own
		case h.form.variable != "":
			value, err := h.Variable(name)
			if err != nil {
				return nil, err
			}
			all = append(all, Variable{name, value})
		case !h.form.inherits:
			return nil, fmt.Errorf("%s has no variables in its file, and gives servers little of its environment: give the value, as in --env %s=VALUE", h.Title, name)
		}
	}
	return all, nil
}

// value returns a server as a JSON file has it.
func (h *Host) value(s *Server) (object, error) {
	env, err := h.env(s)
	if err != nil {
		return nil, err
	}
	var o object
	if h.form.typed != "" {
		o = append(o, pair{"type", h.form.typed})
	}
	if h.form.listed {
		o = append(o, pair{"command", s.Command})
	} else {
		o = append(o, pair{"command", s.Command[0]}, pair{"args", s.Command[1:]})
	}
	if len(env) > 0 {
		var all object
		for _, v := range env {
			all = append(all, pair{v.Name, v.Value})
		}
		o = append(o, pair{h.form.env, all})
	}
	if h.form.listed {
		o = append(o, pair{"enabled", true})
	}
	return o, nil
}
