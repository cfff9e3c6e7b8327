//go:build unix

package redistest

import (
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"
)

// Replica runs a server that is a replica of another, and returns when it has that
// server's data. args are more of its options.
func Replica(t testing.TB, of *Server, args ...string) *Server {
	t.Helper()
	s := Start(t, append([]string{"--replicaof", "127.0.0.1 " + strconv.Itoa(of.port)}, args...)...)
	s.eventually("the replica has a link to its master", func() bool {
		info, err := s.Do("INFO", "replication")
		return err == nil && strings.Contains(info, "master_link_status:up")
	})
	return s
}

// promoted returns when a replica has become a master.
func (s *Server) promoted() {
	s.t.Helper()
	s.eventually("the replica is a master", func() bool {
		role, err := s.Do("ROLE")
		return err == nil && strings.HasPrefix(role, "master")
	})
}

// After how long a silent server is taken for dead by those that watch it. On a busy machine a
// live server may be silent for as long as soon. So soon is set only while a master is dead:
// else its replica could be replaced too, by the old master that runs again, with old data.
const (
	soon = time.Second
	late = time.Minute
)

// FailOver has a Sentinel notice that the master of a name is dead or stopped, and
// returns when the Sentinel names its replica as the master.
func (s *Server) FailOver(name string, replica *Server) {
	s.t.Helper()
	s.suspect(name, soon)
	replica.promoted()
	s.eventually("Sentinel knows of the new master", func() bool {
		addr, err := s.Do("SENTINEL", "GET-MASTER-ADDR-BY-NAME", name)
		return err == nil && strings.ReplaceAll(addr, "\n", ":") == replica.Addr()
	})
	s.suspect(name, late)
}

func (s *Server) suspect(name string, silent time.Duration) {
	s.MustDo("SENTINEL", "SET", name, "down-after-milliseconds", strconv.FormatInt(silent.Milliseconds(), 10))
}

// FailOver has the servers of a Cluster notice that a master is dead, and returns when
// its replica is the master. alive are all servers but the dead one.
func FailOver(replica *Server, alive ...*Server) {
	replica.t.Helper()
	suspect := func(silent time.Duration) {
		for _, s := range alive {
			s.MustDo("CONFIG", "SET", "cluster-node-timeout", nodeTimeout(silent))
		}
	}
	suspect(soon)
	replica.promoted()
	suspect(late)
}

// nodeTimeout returns the value of cluster-node-timeout with which a master is
// replaced after it was silent for a time.
func nodeTimeout(silent time.Duration) string {
	return strconv.FormatInt(silent.Milliseconds()*3/2, 10)
}

// Sentinel runs a Sentinel that watches a master under a name, and decides alone.
func Sentinel(t testing.TB, of *Server, name string) *Server {
	t.Helper()
	need(t)
	s := &Server{t: t, dir: t.TempDir()}
	conf := s.file("sentinel.conf", fmt.Sprintf("bind 127.0.0.1\nsentinel monitor %[1]s 127.0.0.1 %[2]d 1\n"+
		"sentinel down-after-milliseconds %[1]s %[3]d\nsentinel failover-timeout %[1]s 10000\n", name, of.port, late.Milliseconds()))
	s.args = []string{conf, "--sentinel"}
	s.begin()
	// A Sentinel that was held up for two seconds does nothing for 30, and then finds no
	// replica good enough, as all were without a master for too long. From Redis 7 on
	// these two seconds can be changed; an older server returns an error.
	_, _ = s.Do("SENTINEL", "DEBUG", "tilt-trigger", "600000")
	s.eventually("Sentinel knows the master's replica", func() bool {
		info, err := s.Do("INFO", "sentinel")
		return err == nil && strings.Contains(info, "status=ok") && !strings.Contains(info, "slaves=0")
	})
	return s
}

// Cluster runs masters of a Redis Cluster, each with one replica if replicas is true, and
// returns when all servers know that it is complete. The masters come first in the result.
func Cluster(t testing.TB, masters int, replicas bool) []*Server {
	t.Helper()
	n := masters
	if replicas {
		n *= 2
	}
	all := make([]*Server, n)
	for i := range all {
		all[i] = Start(t, "--cluster-enabled", "yes", "--cluster-node-timeout", nodeTimeout(late),
			"--cluster-replica-validity-factor", "0")
	}
	const slots = 16384
	for i, s := range all[:masters] {
		s.MustDo("CLUSTER", "ADDSLOTSRANGE", strconv.Itoa(i*slots/masters), strconv.Itoa((i+1)*slots/masters-1))
		s.MustDo("CLUSTER", "SET-CONFIG-EPOCH", strconv.Itoa(i+1))
	}
	// A handshake that takes longer than the node timeout is given up, and has to be
	// requested again.
	var met time.Time
	meet := func() {
		if time.Since(met) < time.Second {
			return
		}
		for _, s := range all[1:] {
			s.MustDo("CLUSTER", "MEET", "127.0.0.1", strconv.Itoa(all[0].port))
		}
		met = time.Now()
	}
	for i, s := range all[masters:] {
		id := all[i].MustDo("CLUSTER", "MYID")
		s.eventually("the nodes of the Cluster have met", func() bool {
			meet()
			_, err := s.Do("CLUSTER", "REPLICATE", id)
			return err == nil
		})
	}
	for _, s := range all {
		s.eventually("the Cluster is complete", func() bool {
			info, err := s.Do("CLUSTER", "INFO")
			if err == nil && strings.Contains(info, "cluster_state:ok") &&
				strings.Contains(info, fmt.Sprintf("cluster_known_nodes:%d", n)) {
				return true
			}
			meet()
			return false
		})
	}
	if replicas {
		for i, s := range all[:masters] {
			s.eventually("each master has its replica", func() bool {
				// Master and replica may have changed places, if the machine stood still.
				one, err := s.Do("INFO", "replication")
				two, err2 := all[masters+i].Do("INFO", "replication")
				return err == nil && err2 == nil && strings.Contains(one+two, "state=online")
			})
		}
	}
	return all
}

func (s *Server) eventually(what string, ok func() bool) {
	s.t.Helper()
	for deadline := time.Now().Add(patience); !ok(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			s.t.Fatalf("it is not so that %s", what)
		}
	}
}

// Move moves a slot of a Cluster, with its keys, from one master to another, while
// clients use it.
func Move(t testing.TB, all []*Server, slot string, from, to *Server) {
	t.Helper()
	source, target := from.MustDo("CLUSTER", "MYID"), to.MustDo("CLUSTER", "MYID")
	to.MustDo("CLUSTER", "SETSLOT", slot, "IMPORTING", source)
	from.MustDo("CLUSTER", "SETSLOT", slot, "MIGRATING", target)
	for {
		keys := from.MustDo("CLUSTER", "GETKEYSINSLOT", slot, "1")
		if keys == "" {
			break
		}
		from.MustDo("MIGRATE", "127.0.0.1", strconv.Itoa(to.port), keys, "0", "20000")
	}
	for _, s := range append([]*Server{to, from}, all...) {
		s.MustDo("CLUSTER", "SETSLOT", slot, "NODE", target)
	}
}
