package budget

import "testing"

// One client may have a share of the bytes for connections that are still free: a client that is alone gets its share of
// all bytes, and each further one gets less, and leaves room for the next.
func TestConnections(t *testing.T) {
	t.Parallel()
	const each = 1 << 10
	fill := func(c *Connections, tenant string) (n int) {
		for c.Take(tenant, each) {
			n++
		}
		return n
	}
	c := NewConnections(2<<20, 0.75) // connections may take one and a half times that
	if c.Most() != 3<<20 {
		t.Fatalf("%d bytes are for connections", c.Most())
	}
	if n := fill(c, "a"); n != 3<<10*3/4 {
		t.Errorf("one client alone has %d of 3072", n)
	}
	if n := fill(c, "b"); n != 768*3/4 {
		t.Errorf("the second has %d of 768", n)
	}
	if n := fill(c, "c"); n != 192*3/4 {
		t.Errorf("the third has %d of 192", n)
	}
	if n := fill(c, "a"); n != 0 {
		t.Errorf("the first has %d more", n)
	}
	if n := fill(c, ""); n != 48 {
		t.Errorf("clients of a proxy have %d of 48", n)
	}
	for tenant, n := range map[string]int64{"a": 2304, "b": 576, "c": 144, "": 48} {
		c.Add(tenant, -n*each)
	}
	if c.Used() != 0 || len(c.tenants) != 0 {
		t.Errorf("%d bytes and %d clients are left", c.Used(), len(c.tenants))
	}
	c = NewConnections(2<<20, 1)
	if n := fill(c, "a"); n != 3<<10 {
		t.Errorf("with a share of all one client has %d of 3072", n)
	}
	if n := fill(c, "b"); n != 0 {
		t.Errorf("another has %d of nothing", n)
	}
	c = nil
	if c.Add("a", 1); !c.Take("a", 1<<50) || c.Used() != 0 {
		t.Error("nobody counts, and there is a bound")
	}
}
