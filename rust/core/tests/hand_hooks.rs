//! What FSDP2's hooks hold beside parameters and their gradients, worked by hand.

mod sums;

use autopar_core::estimate::shard::Shard;
use autopar_core::spec::framework::{Framework, Gathers};
use autopar_core::testing::{self, whole};
use autopar_core::units::Bytes;
use sums::sharded;

#[test]
fn sums_over_replicas_of_shards_wait_where_they_are_wider_than_gradients() {
    // Two replicas of four shards: of 1050 parameters 263 on each rank, whose sums of 4 bytes wait beside gradients of 2 until the
    // backward pass ends. Nothing else is there then: 263 x (2 + 2 + 12), buffers of 1000, a working set of 7.
    let mut f = testing::framework();
    f.gathers = Gathers::MicroBatch;
    (f.bytes.gradient, f.held.waiting_sums) = (2, true);
    let fsdp = Shard { dp: 8, zero: 3, shard_group: 8, ..whole() };
    let shard = Shard { shard_group: 4, ..fsdp };
    let waits = |f: &Framework, shard| {
        let mut f = f.clone();
        let waiting = sharded(&f, shard);
        f.held.waiting_sums = false;
        waiting.reserved() - sharded(&f, shard).reserved()
    };
    assert_eq!(waits(&f, shard), Bytes(263 * 4));
    assert_eq!(sharded(&f, shard).allocated(), Bytes(263 * (2 + 2 + 12 + 4) + 1000 + 7));
    // One replica has nobody to sum with, and sums of the gradients' width are the gradients.
    assert_eq!(waits(&f, fsdp), Bytes(0));
    f.bytes.gradient = 4;
    assert_eq!(waits(&f, shard), Bytes(0));
}

#[test]
fn replicas_that_are_hooked_as_shards_of_themselves_compute_with_copies() {
    // Eight replicas of 1050 parameters in 2 bytes, which the optimizer updates: the passes have copies. Gradients pass in 2 bytes, and
    // as their sums of 4 wait those that came last lie as they were made beside as they travel: 100 x (2 + 4).
    let mut f = testing::framework();
    (f.bytes.gradient, f.bytes.optimizer) = (2, 4);
    (f.hooks_replicas, f.held.waiting_sums) = (true, true);
    let shard = Shard { dp: 8, ..whole() };
    let items = sharded(&f, shard);
    assert_eq!((items.parameters, items.gradients), (Bytes(1050 * (2 + 2)), Bytes(1050 * 2)));
    assert_eq!(items.buffers, Bytes(1050 * 4 + 100 * (2 + 4)));
    f.hooks_replicas = false;
    let plain = sharded(&f, shard);
    assert_eq!((plain.parameters, plain.buffers), (Bytes(1050 * 2), Bytes(0)));
}
