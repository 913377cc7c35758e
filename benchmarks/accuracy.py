"""Writes docs/accuracy.md: how far predictions lie from measurements that no fit saw.

python -m benchmarks.accuracy
python -m benchmarks.accuracy --peers FOLDER   (docs/accuracy-peers.md too, from files that are not kept here)
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from benchmarks import (
    accuracy_acceptance,
    accuracy_allreduce,
    accuracy_bare,
    accuracy_break_even,
    accuracy_cost,
    accuracy_cycles,
    accuracy_peers,
    accuracy_phases,
    accuracy_serving,
    accuracy_tensor_parallel,
    accuracy_trees,
    accuracy_waits,
)
from benchmarks.groups import LONG, OWN, PUBLIC
from benchmarks.held_out import whole
from specsim import SpecsimError
from specsim.cost.graph_padding import single_launches
from specsim.quantities import LEVEL

DOCS = Path(__file__).parents[1] / "docs"
PAGE, PEERS_PAGE = DOCS / "accuracy.md", DOCS / "accuracy-peers.md"

HEAD = """\
# Accuracy

Written by `python -m benchmarks.accuracy`; a test compares this page with what that command gives. Errors are
|predicted/measured − 1|, each row predicted by a fit that did not see it (but for the line that says in sample). Three
more projects' measurements, under their own protocols, are on [a page of their own](accuracy-peers.md).

## Cycle time: own measurements

vLLM 0.24.0 with EAGLE-3 on one H200, CUDA graphs, dummy weights, synthetic acceptance; an 8B dense
model at 0, 1, 3 and 7 drafts and batch 1 to 256, and a 30B mixture of experts (8 of 128) in plain decode
(`tests/validation/data/h200_vllm_cycles.csv`, medians of 2 or 3 repeats). "Long prompts" are six more rows of the 8B
model at 2,112 to 8,320 tokens of context (`h200_vllm_contexts.csv`), fitted with its others. Each part is
left out in turn, the terms chosen and fitted on the rest; plain decode stays where a depth is left out. "In the 90%
interval" is that of a new measurement; "inside the range" are the rows that were not flagged as extrapolated.

{own}

Repeats differ by far less than the form misses, so that its intervals rest on the misfit of a few rows.
The last batch sizes and widths lie beyond what is left, and are flagged so: kernels turn from flat to steep between 128
and 256 tokens, and a fit that has not seen it cannot know. Of the mixture of experts four batch sizes are left at a time,
one too few for both terms that all five ask for.

## Bare forwards under a served fit

The same served rows over the target's forward timed alone (`specsim fit --bare-forwards`, eq. 13). "Bare stack" is a
microbenchmark of the decoder's layers without attention at 40 counts of tokens (`h200_bare_8b.csv`, medians of 25 repeats;
"fast repeats" are their tenth percentile), "expert layers" eight fused ones times 48/8 (`h200_experts_30b.csv`), "harness" what
`python -m calibration forward` measured on another machine of that kind, with kernels of its own, attention and head
(`calibration/data`). The mixture with distinct drafts, the 1.7B model and SGLang were measured by `python -m calibration serve`.
Aimed at are a median of 1% and 95% of rows within 3%.

{bare}

Without, the knees that a fit has not seen are missed. Over any of the three they are not, be it fitted to nearly all rows
or to six. What is missed, and why:

- Seven drafts at batch 32 (256 tokens) too long, one draft at batch 64 (128 tokens) too short: there the stack alone is
  slower than the server's forward of few requests was by CUDA events, and
  what stands beside it is too small for many. The stack's repeats lie up to {scatter_high:.1%} apart from 192 tokens on, {scatter_low:.1%} at most
  to 144: that is where a chip under full load gives way, and a server pauses between forwards (an inference; clocks were not
  read). The fast repeats are nearer.
- Plain decode at batch 1: a single token takes the stack less than two, as if by another kernel. The server's forwards had no
  such step by CUDA events, nor have the harness's.
- Plain decode of 4 to 16 from six runs: what stands beside the stack is no line in the requests: nearly
  constant up to batch 16, and more with each request beyond.
- Long prompts from those at batch 1: a lone request's cache is read more slowly than that of 64 requests together, and what the curve
   misses at one token is read as cache. Measure long prompts at a larger batch.
- The mixture with drafts that differ (`calibration/data/h200_served_qwen3-30b-a3b.json`): over the expert layers a part left
  out is told within the aim or near it, and six corners tell the other eighteen rows. Without them, by the share of experts on the
  model card, the corners do not: between them a step bends twice, as experts fill and as products do. One draft does not tell
  seven, over the layers neither: those verify four or sixteen times as many tokens as were seen, and what a draft costs hangs on one.
- The mixture over the harness's forwards: its own expert products are slower than the whole served step, so they are no
  floor, and fitted times a factor. Another engine's kernels are another curve.
- The small dense model (`h200_served_qwen3-1.7b.json`) and SGLang (`h200_served_sglang_llama-3.1-8b.json`, Triton attention):
  the aim is missed by far. Their loads scatter by {small_scatter:.1%} and {sglang_scatter:.1%} in the median and {small_scatter_most:.1%} and {sglang_scatter_most:.1%} at most (standard
  deviations of a load's mean), those of the mixture by {mixture_scatter:.1%}, and more than that is missed. The small model's
  cycles do not even rise with the batch (three drafts: {small_at_4:.2f} ms at batch 4, {small_at_8:.2f} at 8). Why is not known: the hosts were
  not profiled, whose speed short steps wait for. SGLang's batch 16 lies four times beyond its others, and is flagged.
- A curve is as good as its counts. Through powers of two alone the stack is missed by more than 1.5% at
  {coarse} tokens. Measure the counts that will be asked for.

Tokens per second given each run's accept length, and break-even lengths C/t, with everything of the asked batch size
left out. "(The measured cycle)" stands for a model's: the client's own count differs from the engine's cycle by as much. (Of the
mixture and the small model both are the client's.)

{bare_answers}

Aimed at were 2% and 0.03 tokens. Under the dense model a floor takes away the large errors at the edges, and pays with a
hundredth of a token in the middle, mostly by the stack's step at one token; under the mixture it halves the error of L*. The
small model's answers are as uncertain as its cycles.

Trees, by cycles of the harness and by SGLang 0.5.16 (`calibration/data`, batch 1, 4 and 16): from plain decode, chains (of SGLang
one) and one tree, each tree in turn, over the harness's forwards of the shape (chains of at most 16 tokens a request).

{bare_trees}

The aim is missed, with a floor or without, if by less at the edges with one. Verify under a mask takes more than a forward of as
many tokens, up to 32 a request not in the order of tokens, and at 60 far more: the harness's attention goes through 64 rows (tokens × query heads of a key head) at a time, and
reads the cache again for each. Chains don't show that, and one tree shows its own. SGLang's trees are missed alike, whose loads
scatter besides; its largest errors without a floor are a tree of 32 tokens told by one of 8. In the mixture's cycles a request's
tokens route alike, so that verify reads fewer experts than forwards of independent tokens do: those are no floor there.

## Cycle time: public figures

{rows} published rows in {groups} groups, one source and setup each, retyped from issues, blogs and documents
(`tests/validation/data/public/`; each row states its source, what was derived, and what its batch size means). A row with
throughput R and accept length L is the cycle C = B·L/R. "Predicted" counts the times that the rest determines: without
its one baseline a group has no plain decode to predict.

{public}

{together}

Where it is good, one server was measured at one batch size with a stated accept length. What the best public model of
step time states, on bare forwards of shapes that it had measured at another context, is a mean error of 0.72% and a
largest of 2.99% ([ours on the same rows](accuracy-peers.md) is closer); most of these groups do not repeat themselves that well. Where it is bad:

- SpecForge#339 and AngelSlim#163 state the batch size that a benchmark was asked for, over a short list of prompts at whose
  end the batch drains. In SpecForge#339 the same four tokens took 11.6 ms as a chain and 9.6 ms as a tree
  that drafts more: no cost that rises with what is drafted is within 9% of both. The widest trees (60 and 64 tokens of a
  request, where the next have 16) are deeper and wider than all others, and flagged; AngelSlim#163 without its trees of 16
  tokens has batch 1 left.
- sglang-jax#1053 is a client's workers over two data-parallel ranks, prefill included. Its cycle grows by 46% from 16 to
  32 workers and by 14% from 32 to 64: as if all experts were in use, which seven rows hardly tell from noise.
- sglang#35413 is a profile at 8, 16 and 1,024 tokens and two served loads between: a row left out leaves no neighbour.
- QQQ#29 jumps by half between 16 and 24 tokens, as at a kernel's tile. A knee is a change of slope, not a jump.
- llama.cpp#14132 bends within its first three tokens: a single token, or two and three, left out take the bend away.

Figures by kind of work (AngelSlim's documents) scatter by a few percent where the model says that only the accept length
differs: prompts and the time to the first token differ too. An interval knows how rows scatter around a form, not
whether the form holds where nothing was measured.

## What a user would use instead

On the rows of which each speaks, beside ours with the first part of each group left out: verify in proportion to its
tokens (N plain steps; without a baseline, from the narrowest row), a constant cost ratio (Leviathan et al.: verify is a
plain step, a draft step a share of it, from one known run; a bare forward what the narrowest takes), and the pure roofline
(the target's weights read, or its operations done, at the vendors' figures, where model and hardware are stated).

{instead}

A constant ratio is a good rule at one batch size of a fast server, where verify is flat: there it may be closer than a fit
to a handful of rows.

## Break-even length and verdict

L* = C/t where a group has plain decode at the batch size and accept lengths: every configuration in turn is left out,
asked for, and compared with its measured C/t. "It pays in" counts rows whose measured length exceeds that; "sign right"
rows where the predicted L* lies on the same side of the length; the verdict commits itself at 95%.

{break_even}

Most of these rows pay by a wide margin, so that any rule has the sign right. The mixtures of experts under SGLang are the
hard ones: there a constant ratio has the sign right about as often as a fit, which at least says where it does not know.

## Forward time by an all-reduce table

Own measurements on two H200s with NVLink (NCCL 2.28.9, CUDA graphs, multicast off): what a setting changes of a 32-layer
forward of hidden size 4096 with 64 all-reduces, at 1 to 512 tokens on {forward_many} machines and 1 to 64 on {forward_few} others, and what tables
of all-reduces say of it (eq. 17). Files are named as in `calibration/data`; "no attention" is
`tests/validation/data/h200x2_forward.csv`. All tables are of `h200x2d`, by `python -m calibration allreduce --model`:
all-reduces back to back, as nccl-tests makes them; what one adds behind a matrix product that it depends on, whose weight
stays in the cache; the same behind products of four weights of 128 MiB in turn, which come from memory ("cold"); and what the
forward took longer with its all-reduces, over their number. Settings are NCCL's; `vllm`, `one-shot` and `two-shot` are not (vLLM's
custom all-reduce, torch's symmetric memory). Within 15% or 0.1 ms is the aim.

{all_reduce}

Back to back tells {alone_within} of {alone_of} changes so, behind cold products {cold_within}. Of the {forward_of} changes for which another machine's
forward was asked it tells {forward_within}, cold products tell {cold_of_forward}, back to back {alone_of_forward}. Of the {forward_missed} missed {between_missed} lie between two sizes of that table, where NCCL may step
({between_places}); the others are {else_missed}. Many changes are small, so that any small
figure tells them: "no change" would tell {nothing_within} of the {alone_of}. Most of what single all-reduces leave out is that weights come from memory
between two of them. What an all-reduce takes more in a forward than its table says, less what the default's does, up to {few} tokens,
where the default is LL:

{extras}

Ring-LL says no more than that it and the default agree. Simple and LL128 are dearer where weights come from memory, in a ring as in a
tree, and so are other implementations, by less; part of Simple's stays unexplained. Up to {fall_short:.2f} times what back to back says
was measured (Ring-LL at 256 tokens, where the default is not LL); intervals of settings that were never run allow for that. Give `specsim comm` the table in a forward or, without a forward, the one behind cold products.

One all-reduce in a forward, by message:

{in_forward}

## Served over two GPUs, by NCCL setting

vLLM 0.24.0 without weights, with an EAGLE-3 head and forced acceptance, over two H200s with NVLink: plain decode, 3 and 5 drafts at
batch 1 to 64, by `python -m calibration serve --tensor-parallel 2`; which loads each file has is in `calibration/data/README.md`. `h200x2d` and `h200x2e` are of one machine each, the former that of the tables for Ring-LL and Ring-Simple
(`calibration/data/h200x2d_served_llama-3.1-8b.json` and so on); the three starts of `h200x2` were, by our notes, on three
machines: plain decode and 3 drafts on the first, 5 drafts on the other two (with the engine's own all-reduce on the first and second), so
that there every L* of 5 drafts but the engine's own at batch 1, and the engine's own change at 5, is between machines. `h200x2j` is of one more, where the engine's own was started apart from
the others, and `h200x2j_again` a later start there; `h200x2g`, `h200x2m` and `h200x2q` are of one more each. In each file the fit saw all runs under NCCL's default, with vLLM's own all-reduce off. All other settings are the default's times
moved by eq. 17; none of their runs was seen. `engine-own` has vLLM's own all-reduce on, told by the table of `vllm`; `no-mixing` is
NCCL_GRAPH_MIXING_SUPPORT=0. For `engine-own` and without peer access ("nop2p") all-reduces were measured between a drafter's graphs, too ("beside drafts"), in whole cycles on {cycled}: at each size
the median over those machines, each once, without the servers' own; for `no-mixing` on `h200x2g` itself, beside wide drafts (below). For the others they are of `h200x2d`,
with gathers of one more machine (`h200x2f_gather.csv`).

{tensor_parallel}

A change within 15% or 0.2 ms is the aim. But for `h200x2g` {felt_within} of {felt_of} changes between NCCL's settings are told so, by all-reduces in a
forward without drafts {alone_nccl}, by those behind cold products {warm_within}, by those back to back {table_within}; on `h200x2d` {one_within} of {one_of}. Of the {own_of} changes to the
engine's own all-reduce {own_within} are, without what was measured beside drafts {own_alone}, behind cold products {own_warm}, back to back {own_table}. No message
and no gather lies outside the tables. Of the {both_of} changes to the engine's own and to no peer access {both_within} are told so; by the tables of one machine alone {by_one_within_least} to {by_one_within_most}.

What is missed. † marks loads that stand out, {standing_out} of {few_loads} with fewer than {many} requests in these files: the standard deviation of their parts (half of what
`min` and `max` lie apart, over √3) is more than {unsteady:.1%}, no other's by more than {else_most:.1%}; the share was chosen on the loads of the first three files, and that they were disturbed is an inference. Where none
stands out, {felt_steady_within} of {felt_steady_of} between NCCL's settings and {own_steady_within} of {own_steady_of} to the engine's own are within; outside their intervals lie {outside} of all. Measured changes are larger than told by
(means over these files at batch 1, 4, 16 and 64, where no load stands out, ms):

{larger}

`h200x2g` is apart, since there loads were late that do not stand out: under the default cycles of fewer than {many} requests with drafts took
{late_least:.2f} to {late_most:.2f} times those of `h200x2d` ({late_own_least:.2f} to {late_own_most:.2f} with the engine's own all-reduce), those that do not stand out to {late_steady:.2f} times; in the other files to {others_most:.2f}, and those that do not stand out to {others_steady:.2f}.
We take the host to have been late (an inference): forwards alone on the two GPUs are told as on others (above). {late_standing} of its {late_loads} loads of fewer than {many} requests stand out, by the same share. How many servers stand on the GPUs
is not what decides: five and four did here, eight on `h200x2d` and `h200x2e`, three on `h200x2j`, `h200x2m` and `h200x2q`. What a host adds is no part of eq. 17: of {late_of} changes {late_within} are told within the aim
(by the other tables, in their order, {late_by_others}); of the {late_steady_of} where no load stands out {late_steady_within}, and {late_outside} of those lie outside their intervals.

### NCCL's all-reduces between a drafter's graphs

What forwards take longer with all-reduces, over their number: alone, each forward waited for, and between draft forwards, without a wait; and from one single launch there to the next.
Drafts were whole cycles (below) or, before the harness had those, forwards as wide as the verify with a short gather between (medians over the machines of each row; `vllm-nccl` is NCCL as vLLM calls it; `h200x2k` has messages from 128 KiB to 3 MiB; rows of other machines differ for that alone, among those of whole cycles by up to {apart_small:.1f} µs to 512 KiB and {apart_large:.1f} at 4 MiB):

{beside}

Forwards without all-reduces were timed alone for both. Between drafts that reduce those of 512 tokens take {bare_default:.2f} ms less under the default and {bare_nop2p:.2f} less without peer access (`h200x2j`),
and by them the change to that would be {bare_own:.2f} ms more than what forwards with all-reduces themselves differ by there, by those alone {bare_alone:.2f}. We take it that the GPU clocks higher the longer it rests in
the drafts' messages. As vLLM calls it, NCCL takes {vllm_alone_least:+.1f} to {vllm_alone_most:+.1f} µs more an all-reduce in a forward alone, {vllm_beside_least:+.1f} to
{vllm_beside_most:+.1f} beside drafts on `h200x2j`, about what measurements of one and the same differ by:

{starts}

(`python -m benchmarks.allreduce_starts`, forwards with all-reduces, in starts of their processes on one machine.) Alone they differ by up to {start_alone:.2f} ms under the default and {start_alone_nop2p:.2f} without peer access, beside drafts by up to
{start_beside:.2f} and {start_beside_nop2p:.2f}. Not all sizes of a start together; whether the start or the capture of a graph decides was not told apart. A table that was measured once has that in it.

NCCL keeps its calls in graphs and outside them in order, which it calls graph mixing. In profiles of servers (`h200x2h_kernels.csv`; medians of the two ranks, µs, steps of 16
tokens, one start each) its kernels begin {mixed_least:.1f} µs or more after the kernel before them, without mixing {unmixed_before:.1f} µs, as other kernels of a graph do. Two other settings of NCCL leave that:

{kernels}

With drafts and mixing graphs run on {mixed_streams:.0f} streams; on one rank or both, in these starts and one more (`h200x2f_kernels.csv`), single launches begin
{late_single_least:.1f} to {late_single_most:.1f} µs after what ran before, elsewhere {single_most:.1f} at most, and all-reduces of the verify graph up to {before_most:.1f}. Why drafts do that was tried in the harness: forwards of 16 tokens in turn with what stands between them (`h200x2i_drafts.csv`; µs, gaps of the two ranks
under a profiler, streams of all graphs):

{between}

Draft graphs that only reduce, or that gather logits by the same communicator, change nothing. vLLM 0.24 reduces in a draft's graphs by one communicator and gathers the draft's logits there by
another: then such graphs are laid over more streams, and all-reduces of the forward's graph and single launches begin later. Not so without mixing, nor where all-reduces are not
NCCL's.

Without mixing NCCL supports no call outside graphs that is launched while a graph with calls of the same communicator has not ended, even on the same stream
([its documentation](https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html#nccl-graph-mixing-support)). The harness between drafts is such a use, and whether vLLM is was not looked into; sums were
checked alone, and servers without weights do not show wrong ones. It is measured here to tell why, not as advice.

Where a step's change lies was read off events in servers of two more starts, four and seven on two GPUs, loaded one by one, one start each (`h200x2f_phases.csv`, of one rank alone, and
`h200x2h_phases.csv`, as `SPECSIM_PHASES` records them). Told, and measured [ms]; each phase by the rank whose median is less, for the other one waits in it, so that a row is not a whole cycle:

{phases}

Verify graphs of cycles that draft change by {least_verify_beside:+.2f} to {most_verify_beside:+.2f} ms more than told (by {least_verify_alone:+.2f} to {most_verify_alone:+.2f} without what was measured beside drafts), their draft forwards by {least_drafts:+.2f} to
{most_drafts:+.2f} ms. Changes by gathers without peer access are told within {gathers_off:.1%}; a gather itself took
{server_least:.1f} to {server_most:.1f} times what `h200x2f_gather.csv` says, and of 16 KiB to 4 MiB {gather_least:.2f} to {gather_most:.2f} of an all-reduce of as many bytes back to back.
Where nothing is communicated, the engine's own all-reduce saves {rest_least:.2f} to {rest_most:.2f} ms ({rest_told:.2f} told) and no mixing {unmixed_least:.2f} to {unmixed_most:.2f} ({unmixed_told:.2f} told), without peer access {nop2p_rest:.2f} ms differ at most:
{launches:.0f} single launches, counted in cycles of three drafts. Servers' cycles without mixing were {unmixed_1:.2f} and {unmixed_4:.2f} ms longer as a whole at batch 1 and 4 all the same: the host came late, with seven servers on it (an inference).

That places are left uncounted is not what is missed. On one GPU vLLM was made to wait {wait_short:g} or {wait_long:g} µs in each place in which a tensor-parallel one
reduces (`calibration serve --settings wait-5,wait-20`), so that the two differ by {wait_apart:g} µs in each of those that eq. 17 counts. To 16 requests
the difference is paid once for each, within {waits_off:.0%}:

{waits}

At 64 requests with drafts about a quarter of it is not seen, where power limits the clock: it rises with the wait, from {short_mhz} to
{long_mhz} MHz with 3 drafts and from {short_mhz_5} to {long_mhz_5} with 5 (`h200_waits_clocks.csv`; that the one is why the other is, is an inference).

Which drafts the harness has about its forwards matters. On `h200x2m` it ran whole cycles (the
target's logits gathered, one draft forward as wide as the verify, the others of a token a request; `python -m benchmarks.drafting_cycles`, three starts of the default and two without peer access), and vLLM's phases were read on the same
GPUs (four servers, one start, as above). What verify and draft forwards take more without peer access [ms]:

{cycles}

Servers' verifies change by {cycled_verify_least:+.2f} to {cycled_verify_most:+.2f} ms more than in whole cycles on the same GPUs (mean {cycled_verify_mean:+.2f}), by {eq_verify_least:+.2f} to {eq_verify_most:+.2f} more than by eq. 17 and other machines' whole cycles
(mean {eq_verify_mean:+.2f}), by {wide_verify_least:+.2f} to {wide_verify_most:+.2f} more than by eq. 17 and wide drafts (mean {wide_verify_mean:+.2f}). These are readings of one start each, and verify's change in the harness's cycles of 3 drafts differs by up to {again_ms:.2f} ms from that
of `allreduce --model` minutes before on the same GPUs (`h200x2o`, `h200x2p`); what sets whole cycles apart is that in one and the same start they take more than wide drafts everywhere: with 3 drafts {wide_3_least:.2f} to {wide_3_most:.2f} ms more than between three wide ones, with 5
{wide_5_least:.2f} to {wide_5_most:.2f}. In the server that was read the default's cycles of 1 and 4 requests took {marked_least:.1f} to {marked_most:.1f} ms more than in one without marks, so that we take the host to have been late there; each part is of the rank that waits less. Draft forwards change by up to {cycled_drafts_most:.2f} ms more
than in whole cycles, most at 5 drafts and one request, which vLLM runs in a graph of six tokens and the harness does not; eq. 17 counts the graph's, and its three all-reduces and a gather are off by {eq_drafts_off:.3f} ms at most, so that draft
forwards need no times of their own. The harness has whole cycles about its forwards since (`allreduce --model`): they are what vLLM 0.24 runs.

### Break-even lengths over two GPUs

L* within 0.05 tokens is the aim. The first table has the {steady_close_of} lengths behind which no load stands out, without those of `h200x2g`. "Moved runs" are the default's own runs at the very drafts and
batch size, moved by eq. 17; the two fits are what a user asks: "the fit" to the default's runs, and the same "over forwards", under it the default's forward alone (`--bare-forwards`), at each
count of tokens the median over those of {forwards_of} that have it and are not the servers' own. Intervals are each fit's, nominally {level:.0%}; tok/s are by the measured accept length.

{fits}

Without forwards a fit takes the default's cycles for a line in tokens. Over them Ring's lengths and the engine's own are told better, those without peer access are not; by forwards of one machine alone
{one_least} to {one_most} are within the aim, so that the median of several is no better than one. On `h200x2j` both fits saw two loads of the default that stand out, and both err most there. The {one_file} of `h200x2d` go by its own machine's all-reduces, all others by other machines'.

Intervals add to the fit's own what eq. 17 is allowed to miss in verify, which was set on servers of `h200x2`, `h200x2d` and `h200x2e`: of the {fresh_of} lengths of those that were measured later {fresh_held} lie in theirs, of all {steady_close_of} lengths {over_held}, without that allowance {exact_held}. Half of one
is {half_least:.3f} to {half_most:.2f} tokens, more than the aim. Of all loads, those that stand out too, {held_all} of {held_of} lie in them (without forwards {held_fit}), on `h200x2g` {held_late} of {held_late_of}.

At {over_places_within} of {places_of} places (a setting, drafts and batch size; {several_of} on two machines or more, of which {over_several_within} are) the median error over machines is within the aim over forwards, by the fit at {fit_places_within} and by moved
runs at {places_within}. Not over forwards: {over_missed} (told less measured). On all {falls} files with the engine's own specsim warns that verify falls from 48 to 64 tokens under the engine's own,
as forwards of the harness do without any all-reduce ({falls_from:.2f} to {falls_to:.2f} ms on `h200x2n`). All loads:

{tensor_parallel_answers}

By moved runs, but for `h200x2g`, {moved_close_within} of {moved_close_of} under NCCL's settings are within 0.05, on `h200x2d` {one_close_within} of {one_close_of}, under Ring-LL and Ring-Simple {nvlink_close_within} of {nvlink_close_of}, without peer access
{nop2p_close_within} of {nop2p_close_of}; with the engine's own all-reduce {own_close_within} of {own_close_of}. The fit tells {told_close} of NCCL's, over forwards {over_close}.
On `h200x2g` {late_close_within} of {late_close_of} are by moved runs, with errors to {late_close_most:.2f} tokens, over forwards {late_over_within}, with errors to {late_over_most:.2f}.

Where no load stands out {steady_close_within} of {steady_close_of} are, by moved runs: under Ring-LL and Ring-Simple {nvlink_steady_within} of {nvlink_steady_of}, with the engine's own all-reduce {own_steady_close_within} of {own_steady_close_of}, without peer access {nop2p_steady_within} of {nop2p_steady_of}. Of the latter two {both_close_within} of {both_close_of}, by all-reduces of one machine alone
{one_close_least} to {one_close_most}. By those beside wide drafts it would be {own_wide_within} of {own_wide_of} and {nop2p_wide_within} of {nop2p_wide_of}: whole cycles stand on this page since they are what vLLM runs, not since they were nearer. The same lengths in each file, and those by moved runs less what was measured:

{places}

By moved runs the median over machines is within 0.05 tokens at {several_within} of the {several_of} places that were served on two machines or more; of the {lone_of} others {lone_within} are. The ones missed are {missed_places}.
Without peer access {large_3} of {large_3_of} changes of 3 drafts are told too large (mean of all {mean_3_whole:+.2f} ms), those of 5 too small at 16 requests and by {mean_5_off:.2f} ms on average. By all-reduces beside wide drafts the means are {mean_3_wide:+.2f} and {mean_5_wide:+.2f} ms, in a forward alone {mean_3_alone:+.2f} and
{mean_5_alone:+.2f}: those tell 3 drafts, though their verify falls short (above), and 5 drafts by too little; no place is off by more than {wide_worst:.3f} tokens by wide drafts. By tables of their own machine cycles of `h200x2q` are told {own_3_least:+.2f} to {own_3_most:+.2f} and {own_5_least:+.2f} to {own_5_most:+.2f} ms off, those of `h200x2m` from 4 requests on
by the parts of its own whole cycles {m_least:+.2f} to {m_most:+.2f}. Why 3 drafts take less than 5 would say is not known.

What servers themselves differ by, where no load stands out: without peer access those of two machines have the same length within 0.05 tokens in {pairs_within} of {pairs_of} pairs, and the median of the other machines' servers, under the very setting, tells {loo_within} of {loo_of} (of two starts the mean). Of all other settings {pairs_else_within} of {pairs_else_of} pairs agree so.

How well loads repeat themselves: in two starts on `h200x2j` those of fewer than {many} requests that do not stand out differ by up to {again_default:.1%} under the default and {again_nop2p:.1%} without peer access, and an L* by up to {again_length:.2f} tokens ({again_where}). Tok/s of
all loads that do not stand out, by the measured accept length, is told by the fit within {rate_most:.1%} but on `h200x2j`, where it saw two late loads of the default: {rate_late:.1%}; over forwards within {over_rate_most:.1%}, on
`h200x2j` {over_rate_late:.1%}.

What the engine's own all-reduce saves, both measured (`h200x2`; 5 drafts on other machines than plain decode, but the engine's own at batch 1):

{own_all_reduce}

## Served: time per output token

The same server through its HTTP interface, with clients that keep 1 to 64 requests of 128 prompt tokens in flight at 0,
1, 3 and 7 drafts (`tests/validation/data/h200_vllm_served.csv`), beside the serving simulator. Its steps are priced by a
model that was fitted to engine cycles, never to what clients saw; accept lengths are those of each run, prompts take
verify's slope at 256 to 512 tokens (21 ms per 1,000, assumed). "Inside the range" are loads whose cycles were not
flagged as extrapolated.

{serving}

Every load was one wave of as many requests as the concurrency. At 64 the last prompts are read while the first requests
decode already, which costs 33 to 44 ms a request; a wave that were sent at once would not show it (the last
line). When the client sent is not in its log: that the simulated one sends {apart} ms apart was CHOSEN on these figures, the
only number here that was, so that the lines in sample are no test of it. From 0.15 to 0.4 ms the largest error in sample
stays below 3%. Left out are 128 and 256 in flight (plain decode only): there the client is what limits, at 256 its tokens come 18.6 ms apart from
engine steps of 10.4 ms.

## Public rows that are not fitted

{left_out}

## Accept length

{lengths} published accept lengths in {drafters} groups, one drafter and kind of work each (figures and sources:
`tests/validation/data/accept_lengths.csv`). The default prior was set from the same groups, so where a fit rests on
it (one chain, trees from chains alone) the row is not independent of its group; the exponent of ranks rests on two
drafters of one model.

{acceptance}

Chains predicted from at most three steps come out low at eight: on those curves the conditional rate stops falling,
which two parameters cannot follow.
"""


def page() -> str:
    """The page's text, from data and code as they stand."""
    own, long, public = (accuracy_cost.results(groups) for groups in (OWN, (LONG,), PUBLIC))
    drafters = accuracy_acceptance.public_groups()
    return HEAD.format(
        own=accuracy_cost.held_table([*own, *long]),
        rows=sum(len(group.runs.runs) for group in PUBLIC),
        groups=len(PUBLIC),
        public=accuracy_cost.held_table(public),
        together=accuracy_cost.together(public),
        instead=accuracy_cost.instead_table([*own, *public]),
        break_even=accuracy_break_even.table(),
        left_out=accuracy_cost.left_out(),
        lengths=sum(len(group) for group in drafters.values()),
        drafters=len(drafters),
        acceptance=accuracy_acceptance.table(),
        serving=accuracy_serving.table(),
        apart=accuracy_serving.APART_MS,
        **_over_bare_forwards(),
        **_by_all_reduces(),
        **_over_two_gpus(),
    )


def _over_bare_forwards() -> dict[str, object]:
    """What the section on bare forwards says."""
    names = (accuracy_bare.MIXTURE, accuracy_bare.SMALL, accuracy_bare.SGLANG)
    mixture, small, sglang = (accuracy_bare.load_scatter(name) for name in names)
    at_4, at_8 = (
        accuracy_bare.harness_served(accuracy_bare.SMALL).run(f"4 draft tokens default {b}x128") for b in (4, 8)
    )
    return {
        "bare": accuracy_bare.cycle_table(),
        "bare_answers": accuracy_bare.answers_table(),
        "bare_trees": accuracy_trees.tree_table(),
        "coarse": accuracy_bare.of_powers_of_two(),
        "scatter_low": accuracy_bare.scatter(1, 144),
        "scatter_high": accuracy_bare.scatter(192, 512),
        "mixture_scatter": mixture[0],
        "small_scatter": small[0],
        "small_scatter_most": small[1],
        "sglang_scatter": sglang[0],
        "sglang_scatter_most": sglang[1],
        "small_at_4": whole(at_4).best,
        "small_at_8": whole(at_8).best,
    }


def _by_all_reduces() -> dict[str, object]:
    """What the section on forwards by tables of all-reduces says."""
    alone, cold = (accuracy_allreduce.within(name) for name in ("back to back", "after a cold product"))
    asked = {name: accuracy_allreduce.within(name, "in a forward") for name in accuracy_allreduce.TABLES}
    return {
        "all_reduce": accuracy_allreduce.table(),
        "extras": accuracy_allreduce.extras_table(),
        "in_forward": accuracy_allreduce.in_forward_table(),
        "few": accuracy_allreduce.FEW,
        "fall_short": accuracy_allreduce.fall_short(),
        "alone_within": alone[0],
        "nothing_within": accuracy_allreduce.told_by_nothing(),
        "alone_of": alone[1],
        "cold_within": cold[0],
        "alone_of_forward": asked["back to back"][0],
        "cold_of_forward": asked["after a cold product"][0],
        "forward_within": asked["in a forward"][0],
        "forward_of": asked["in a forward"][1],
        **_missed_forwards(),
    }


def _missed_forwards() -> dict[str, object]:
    """On how many machines forwards were measured, and what is said of changes that a table does not tell."""
    page = accuracy_allreduce
    many = [max(told.tokens.max() for told in found.values()) >= 512
            for machine, found in page.changes().items() if machine != page.NO_ATTENTION]  # fmt: skip
    missed = page.missed()
    between = [each for each in missed if not page.in_the_table(*each[1:])]
    places = sorted({(nccl, tokens) for _, nccl, tokens in between})
    return {
        "forward_many": sum(many),
        "forward_few": len(many) - sum(many),
        "forward_missed": len(missed),
        "between_missed": len(between),
        "between_places": ", ".join(f"{nccl} at {tokens} tokens" for nccl, tokens in places),
        "else_missed": " and ".join(f"{nccl} at {tokens} tokens (`{machine}`)" for machine, nccl, tokens in missed if page.in_the_table(nccl, tokens)),
    }  # fmt: skip


def _waits_and_phases() -> dict[str, object]:
    """What was asked to find where changes under drafts are missed."""
    clocks = accuracy_waits.clocks()
    waited = [accuracy_waits.waited(width) for width in (1, 4, 6)]
    return {
        "waits": accuracy_waits.table(),
        "wait_short": accuracy_waits.SHORT,
        "wait_long": accuracy_waits.LONG,
        "wait_apart": accuracy_waits.LONG - accuracy_waits.SHORT,
        "waits_off": max(abs(float(share) - 1) for each in waited for share in each.share[:3]),
        "short_mhz": clocks["wait-5", 3],
        "long_mhz": clocks["wait-20", 3],
        "short_mhz_5": clocks["wait-5", 5],
        "long_mhz_5": clocks["wait-20", 5],
        **accuracy_phases.missed(),
        "phases": accuracy_phases.table(),
        "kernels": accuracy_phases.kernels_table(),
        "between": accuracy_phases.between_table(),
        **accuracy_phases.waits_before(),
        "launches": float(single_launches(np.array([3.0]), "vllm")[0]),
        "gather_least": float(accuracy_allreduce.gather_shares()[0]),
        "gather_most": float(accuracy_allreduce.gather_shares()[-1]),
    }


def _over_two_gpus() -> dict[str, object]:
    """What the section on servers over two GPUs says."""
    page = accuracy_tensor_parallel
    of_nccl = tuple(part for part in page.PROMPT if part[1] != page.OWN)
    return {
        "tensor_parallel": page.table(),
        "tensor_parallel_answers": page.answers_table(),
        "own_all_reduce": page.own_table(),
        "larger": page.larger_table(),
        "beside": accuracy_allreduce.beside_table(),
        **dict(zip(("apart_small", "apart_large"), accuracy_allreduce.apart_us(), strict=True)),
        **_waits_and_phases(),
        **_whole_cycles(),
        "alone_nccl": page.within(page.ALONE, of_nccl)[0],
        **{f"own_{key}": page.within(name, page.parts_of(page.OWN))[0]
           for key, name in {"alone": page.ALONE, "warm": "after a cold product", "table": "back to back"}.items()},
        "warm_within": page.within("after a cold product", of_nccl)[0],
        "table_within": page.within("back to back", of_nccl)[0],
        "told_close": page.close(page.FIT, of_nccl)[0],
        "over_close": page.close(page.OVER, of_nccl)[0],
        **_fits(),
        **_places(),
        **_starts(),
        "cycled": ", ".join(f"`{machine}`" for machine in accuracy_allreduce.CYCLED),
        "outside": page.outside_intervals(page.PROMPT),
        **page.loads_told(),
        **_late_host(),
        **_counted(of_nccl),
    }  # fmt: skip


def _counted(of_nccl: tuple[tuple[str, str], ...]) -> dict[str, int]:
    """Of how many changes and lengths how many are told within the aims, by whose they are."""
    page = accuracy_tensor_parallel
    one = tuple(part for part in of_nccl if part[0] == page.ON_TIME[0])
    own, late = page.parts_of(page.OWN), tuple(part for part in page.PARTS if part[0] == page.LATE)
    found = {
        "both": page.within(page.BESIDE, page.BOTH),
        "both_close": page.close(page.MOVED, page.BOTH, True),
        "own_wide": page.close(page.MOVED, own, True, page.WIDE),
        "nop2p_wide": page.close(page.MOVED, page.parts_of("nop2p"), True, page.WIDE),
        "steady_close": page.close(page.MOVED, page.PROMPT, True),
        "nop2p_steady": page.close(page.MOVED, page.parts_of("nop2p"), True),
        "own_steady_close": page.close(page.MOVED, own, True),
        "nvlink_steady": page.close(page.MOVED, page.parts_of("Ring-LL", "Ring-Simple"), True),
        "felt": page.within(page.BESIDE, of_nccl),
        "felt_steady": page.within(page.BESIDE, of_nccl, steady=True),
        "one": page.within(page.BESIDE, one),
        "own": page.within(page.BESIDE, own),
        "own_steady": page.within(page.BESIDE, own, steady=True),
        "late": page.within(page.BESIDE, late),
        "late_steady": page.within(page.BESIDE, late, steady=True),
        "late_close": page.close(page.MOVED, late),
        "moved_close": page.close(page.MOVED, of_nccl),
        "one_close": page.close(page.MOVED, one),
        "own_close": page.close(page.MOVED, own),
        "nvlink_close": page.close(page.MOVED, page.parts_of("Ring-LL", "Ring-Simple")),
        "nop2p_close": page.close(page.MOVED, page.parts_of("nop2p")),
    }
    by_one = sorted(page.within(name, page.BOTH)[0] for name in page.BY_ONE)
    close = sorted(page.close(page.MOVED, page.BOTH, True, name)[0] for name in page.BY_ONE)
    return {
        "by_one_within_least": by_one[0], "by_one_within_most": by_one[-1],
        "one_close_least": close[0], "one_close_most": close[-1],
    } | {
        f"{name}_{what}": each
        for name, pair in found.items()
        for what, each in zip(("within", "of"), pair, strict=True)
    }  # fmt: skip


def _least_most_mean(rising: Sequence[float]) -> tuple[float, float, float]:
    return rising[0], rising[-1], float(np.mean(rising))


def _whole_cycles() -> dict[str, object]:
    """What is said of the harness's whole cycles."""
    page = accuracy_cycles
    changes = {"cycled": page.cycled, "eq": page.by_eq_17, "wide": page.by_wide}
    short = {(by, of): page.short(of, how) for by, how in changes.items() for of in ("verify", "drafts")}
    return {
        "cycles": page.table(),
        **{f"{by}_verify_{what}": value
           for by in changes for what, value in zip(("least", "most", "mean"), _least_most_mean(short[by, "verify"]), strict=True)},
        "cycled_drafts_most": short["cycled", "drafts"][-1],
        **{f"wide_{drafts}_{what}": value for drafts in (3, 5)
           for what, value in zip(("least", "most"), page.over_wide(drafts), strict=True)},
        "eq_drafts_off": max(map(abs, short["eq", "drafts"])),
        "again_ms": max(map(abs, page.apart_from_tables_ms())),
        **dict(zip(("marked_least", "marked_most"), page.marked_ms(), strict=True)),
        **dict(zip(("m_least", "m_most"), page.whole_off_ms(), strict=True)),
    }  # fmt: skip


def _fits() -> dict[str, object]:
    """What is said of fits to a server's runs, over forwards and not."""
    page = accuracy_tensor_parallel
    late = tuple(part for part in page.PARTS if part[0] == page.LATE)
    over = page.places(page.OVER)
    later = page.parts_of("h200x2m", "h200x2q", *page.TWICE)
    fresh = [each.holds(page.OVER) for part in later for each in page.answers(*part) if each.steady]
    halves, bare = page.half_widths(page.OVER), accuracy_allreduce.harness_forwards(page.BASE, "h200x2n")
    return {
        "fits": page.fits_table(),
        "level": LEVEL,
        "forwards_of": ", ".join(f"`{machine}`" for machine in page.FORWARDS),
        **page.variants(),
        "one_file": page.close(page.OVER, page.parts_of(page.ON_TIME[0]), steady=True)[1],
        "half_least": halves[0], "half_most": halves[-1],
        "held_all": page.held(page.OVER, page.PROMPT)[0], "held_of": page.held(page.OVER, page.PROMPT)[1],
        "held_fit": page.held(page.FIT, page.PROMPT)[0],
        "held_late": page.held(page.OVER, late)[0], "held_late_of": page.held(page.OVER, late)[1],
        **{f"{name}places_within": sum(abs(place.error) <= page.TOKENS for place in page.places(by))
           for name, by in (("", page.MOVED), ("fit_", page.FIT), ("over_", page.OVER))},
        "over_several_within": sum(abs(place.error) <= page.TOKENS for place in over if len(place.by_machine) > 1),
        "over_missed": ", ".join(f"{place}, {place.error:+.3f}" for place in over if abs(place.error) > page.TOKENS),
        "falls": sum(page.falls(file) for file in page.SERVED),
        "over_held": sum(each.holds(page.OVER) for each in page.steady_answers()),
        "fresh_held": sum(fresh), "fresh_of": len(fresh),
        **{name: float(bare.bare_ms[bare.tokens == tokens][0]) for name, tokens in (("falls_from", 48), ("falls_to", 64))},
        "late_over_within": page.close(page.OVER, late)[0],
        "late_over_most": max(each.off(page.OVER) for part in late for each in page.answers(*part)),
    }  # fmt: skip


def _places() -> dict[str, object]:
    """What is said of break-even lengths of the same place in several files, and of tok/s."""
    page = accuracy_tensor_parallel
    of_three = page.off_ms(page.BESIDE, "nop2p", 4)
    every, wide = page.places(), page.places(page.MOVED, page.WIDE, page.BOTH)
    several = [place for place in every if len(place.by_machine) > 1]
    lone = [place for place in every if len(place.by_machine) == 1]
    length, where = page.again_length()
    others = tuple(file for file in page.ON_TIME if file != page.TWICE[0])
    return {
        "places": page.places_table("nop2p", page.OWN),
        "places_of": len(every),
        **{f"{name}_{what}": count for name, found in (("several", several), ("lone", lone))
           for what, count in (("within", sum(abs(place.error) <= page.TOKENS for place in found)), ("of", len(found)))},
        "missed_places": " and ".join(f"{place}, {place.error:+.3f}" for place in every if abs(place.error) > page.TOKENS),
        "wide_worst": max(abs(place.error) for place in wide),
        **{f"own_{drafts}_{what}": value for drafts in (3, 5)
           for what, value in zip(("least", "most"), page.by_own_tables_ms(drafts + 1), strict=True)},
        **{f"mean_{drafts}_{what}": np.mean(page.off_ms(name, "nop2p", drafts + 1)) for drafts in (3, 5)
           for what, name in (("whole", page.BESIDE), ("wide", page.WIDE), ("alone", page.ALONE))},
        "mean_5_off": -np.mean(page.off_ms(page.BESIDE, "nop2p", 6)),
        "large_3": sum(ms > 0 for ms in of_three), "large_3_of": len(of_three),
        **_between_servers(),
        "again_default": page.again(page.BASE),
        "again_nop2p": page.again("nop2p"),
        "again_length": length,
        "again_where": str(where),
        **{f"{name}{what}": max(page.rates_off(by, *files)) for name, by in (("", page.FIT), ("over_", page.OVER))
           for what, files in (("rate_most", others), ("rate_late", page.TWICE[:1]))},
    }  # fmt: skip


def _between_servers() -> dict[str, int]:
    """How many lengths servers of other machines tell within the aim."""
    page = accuracy_tensor_parallel
    nop2p, others = (
        [place for place in page.places() if (place.nccl == "nop2p") is peerless] for peerless in (True, False)
    )
    pairs, loo, others_pairs = page.pairs(nop2p), page.by_other_servers(nop2p), page.pairs(others)
    return {
        f"{name}_{what}": count
        for name, found in (("pairs", pairs), ("loo", loo), ("pairs_else", others_pairs))
        for what, count in zip(("within", "of"), found, strict=True)
    }


def _starts() -> dict[str, object]:
    """What is said of starts, of forwards without all-reduces between drafts, and of NCCL as vLLM calls it."""
    page = accuracy_allreduce
    alone, beside = page.called_by_vllm_us()
    apart = {
        nccl: np.max([each.apart for each in page.starts() if each.nccl == nccl], axis=0)
        for nccl in ("default", "nop2p")
    }
    return {
        "starts": page.starts_table(),
        "start_alone": apart["default"][0], "start_beside": apart["default"][1],
        "start_alone_nop2p": apart["nop2p"][0], "start_beside_nop2p": apart["nop2p"][1],
        "bare_default": -float(page.bare_beside_ms("default")[-1]),
        "bare_nop2p": -float(page.bare_beside_ms("nop2p")[-1]),
        "bare_own": page.bare_apart_ms("drafting_without_ms"),
        "bare_alone": page.bare_apart_ms("without_ms"),
        "vllm_alone_least": float(alone.min()), "vllm_alone_most": float(alone.max()),
        "vllm_beside_least": float(beside.min()), "vllm_beside_most": float(beside.max()),
    }  # fmt: skip


def _late_host() -> dict[str, object]:
    """What is said of the machine whose host is taken to have been late."""
    page = accuracy_tensor_parallel
    late = tuple(part for part in page.PARTS if part[0] == page.LATE)
    default, own = page.lateness(), page.lateness(page.LATE, page.OWN)
    return {
        "late_least": float(default[0]), "late_most": float(default[-1]),
        "late_own_least": float(own[0]), "late_own_most": float(own[-1]),
        "late_steady": float(page.lateness(steady=True)[-1]),
        "others_most": max(float(page.lateness(file)[-1]) for file in page.ON_TIME),
        "others_steady": max(float(page.lateness(file, steady=True)[-1]) for file in page.ON_TIME),
        "late_loads": len(page.few_scatters(page.LATE)), "late_standing": len(page.standing_out(page.LATE)),
        "late_by_others": ", ".join(str(page.within(name, late)[0]) for name in page.TABLES[1:]),
        "late_outside": page.outside_intervals(late),
        "late_close_most": max(each.off(page.MOVED) for part in late for each in page.answers(*part)),
    }  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> None:
    """Write the page, and the peers' where their folder is given."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.accuracy", description="Writes docs/accuracy.md.")
    parser.add_argument("--peers", type=Path, metavar="FOLDER", help="write docs/accuracy-peers.md too, from its files")
    given = parser.parse_args(arguments)
    try:
        peers = accuracy_peers.page(given.peers) if given.peers else ""
    except SpecsimError as error:
        parser.error(str(error))
    for path, text in ((PEERS_PAGE, peers), (PAGE, page())):
        if text:
            path.write_text(text, encoding="utf-8")
            print(path)


if __name__ == "__main__":
    main()
