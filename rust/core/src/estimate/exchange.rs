//! How tokens get to experts' ranks in a layer, and results back.

use super::block::Block;
use crate::spec::cluster::Group;
use crate::spec::framework::ExpertDispatch;
use crate::spec::model::Moe;

impl Block<'_, '_> {
    /// Dispatch and combine of `bytes` from each rank: all-to-all over the expert group, of which one rank receives, and on the way back
    /// sends, `fullest` times as much; then over the expert's own tensor-parallel group. What all ranks gather are tokens, not copies of
    /// them, over both groups at once (NVIDIA/Megatron-LM, token_dispatcher.py, MoEAllGatherTokenDispatcher).
    pub(super) fn exchange(&mut self, moe: &Moe, bytes: f64, fullest: f64) -> f64 {
        let p = self.p;
        let s = p.shard;
        let gathers = p.framework.expert_dispatch == ExpertDispatch::Gather;
        let group =
            if gathers { Group { size: s.ep * s.etp, stride: 1 } } else { s.expert_group() };
        let both = |once: f64| (once, once);
        let (mut there, mut back) = match p.framework.expert_dispatch {
            ExpertDispatch::Copies => both(p.fabric.all_to_all(fullest * bytes, group)),
            ExpertDispatch::OnceANode => {
                let kernel = &p.framework.exchange_kernel;
                p.fabric.once_a_node(fullest * bytes, self.choice(moe), group, kernel)
            }
            ExpertDispatch::Gather => {
                both(p.fabric.all_gather(bytes / f64::from(moe.topk) * group.size as f64, group))
            }
            ExpertDispatch::GatherSplit if group.size == 1 => both(0.0),
            ExpertDispatch::GatherSplit => {
                let whole = bytes * group.size as f64;
                self.transient = self.transient.max(whole);
                // Split, everyone's share is read and written; joined, this rank's.
                let split = p.device.stream(2.0 * whole) + p.device.stream(2.0 * bytes);
                both(p.fabric.all_gather(whole, group) + split)
            }
        };
        let cut = s.etp > 1 && !gathers;
        if cut {
            let gather = p.fabric.all_gather(fullest * bytes * s.etp as f64, s.tensor_group());
            (there, back) = (there + gather, back + gather);
        }
        if gathers && group.size > 1 {
            self.gather_choices(moe, bytes, group);
        }
        // Dispatch, the tokens' weights beside it or their layout before it, and combine.
        let launches = 3 * u32::from(group.size > 1) + 2 * u32::from(cut);
        self.forward.expert += there + back;
        self.forward.kernels += launches;
        self.summed += launches;
        self.sent += launches;
        if group.size > 1 {
            // Of a token that travels once a rank has one copy, and who sent it has the sum of its results.
            let (arrive, leave) = match p.framework.expert_dispatch {
                ExpertDispatch::OnceANode => {
                    (p.fabric.copies_a_choice(self.choice(moe), group), 1.0 / f64::from(moe.topk))
                }
                ExpertDispatch::Copies | ExpertDispatch::Gather | ExpertDispatch::GatherSplit => {
                    (1.0, 1.0)
                }
            };
            self.dispatched += (fullest * arrive + leave) * bytes;
        }
        // The gradient of results goes there as tokens do, and that of tokens comes back as results do.
        self.input.expert += there + back;
        self.input.kernels += launches;
        back
    }

    /// Beside tokens of which a rank would send copies of `bytes`, every rank gathers which experts each of them chose, a byte for each
    /// expert there is, and each expert's weight, whose gradients are summed and scattered (NVIDIA/Megatron-LM, transformer/moe/
    /// token_dispatcher.py, MoEAllGatherTokenDispatcher: routing_map and probs).
    fn gather_choices(&mut self, moe: &Moe, bytes: f64, group: Group) {
        let p = self.p;
        let tokens = bytes / (f64::from(moe.topk) * p.model.hidden as f64 * p.width);
        let chosen = tokens * f64::from(moe.experts) * group.size as f64;
        let weights = p.fabric.all_gather(chosen * p.width, group);
        self.forward.expert += p.fabric.all_gather(chosen, group) + weights;
        self.input.expert += weights;
        self.forward.kernels += 1;
        self.summed += 1;
    }
}
