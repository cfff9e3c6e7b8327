package revival

import (
	"context"
	"time"

	"holdfast/internal/sessionid"
)

// Open returns the claims of an id that was sealed here, or by a node that shares the keys, if its session is not too old to
// be revived. The error is of the store that has the keys, such as one that does not answer.
func (k *Keeper) Open(ctx context.Context, id string) (c sessionid.Claims, ok bool, err error) {
	if !sessionid.MayBe(id) {
		return c, false, nil
	}
	ring, err := k.keys(ctx)
	if err != nil {
		return c, false, err
	}
	c, ok = ring.Open(id)
	return c, ok && time.Since(c.Began) < k.o.Life, nil
}

// Rest returns for how much longer a session that began at a time can be revived.
func (k *Keeper) Rest(began time.Time) time.Duration { return k.o.Life - time.Since(began) }
