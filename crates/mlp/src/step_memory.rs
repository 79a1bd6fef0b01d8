//! What the memory of one step is for: by kind and layer, from one allocation to the next.
//!
//! Sizes are as the trainer asked for them, in the order of its calls. A tensor counts until the trainer drops it. The device
//! may use the memory for a moment longer.

use parking_lot::Mutex;

/// What a tensor is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// What is trained.
    Weights,
    /// What the optimizer keeps from step to step.
    Optimizer,
    /// Images on their way, and what is counted of them.
    Batch,
    /// What layers read and write, forward.
    Activations,
    /// Of weights and of activations, backward.
    Gradients,
    /// What an operation needs in between.
    Workspace,
}

impl Kind {
    /// All kinds, those that stay from step to step first.
    pub const ALL: [Self; 6] =
        [Self::Weights, Self::Optimizer, Self::Batch, Self::Activations, Self::Gradients, Self::Workspace];

    /// Its name for people.
    pub fn name(self) -> &'static str {
        match self {
            Self::Weights => "weights",
            Self::Optimizer => "optimizer",
            Self::Batch => "batch",
            Self::Activations => "activations",
            Self::Gradients => "gradients",
            Self::Workspace => "workspace",
        }
    }
}

/// What a tensor is for, and of which layer, from 0 on.
pub type Purpose = (Kind, usize);

/// The memory of a step, from its first allocation to its last.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct StepMemory {
    /// Bytes that are live: at the beginning, and after each allocation and free.
    pub live: Vec<Vec<(Purpose, u64)>>,
    /// Where in `live` a phase of the step begins, and its name.
    pub phases: Vec<(usize, &'static str)>,
}

impl StepMemory {
    /// The moment at which the most is live.
    pub fn peak(&self) -> &[(Purpose, u64)] {
        let bytes = |of: &&Vec<(Purpose, u64)>| of.iter().map(|(_, bytes)| bytes).sum::<u64>();
        self.live.iter().max_by_key(bytes).map_or(&[], Vec::as_slice)
    }
}

/// Counts what is live, and keeps a step.
#[derive(Debug, Default)]
pub(crate) struct Ledger {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// What the next tensor is for.
    next: Option<Purpose>,
    live: Vec<(Purpose, u64)>,
    step: StepMemory,
    is_in_step: bool,
}

impl Ledger {
    /// What the tensors from here on are for.
    pub(crate) fn next_is(&self, purpose: Purpose) {
        self.state.lock().next = Some(purpose);
    }

    /// A tensor of this size is there. Its purpose is what was said last, unless it is of this kind.
    pub(crate) fn allocated(&self, bytes: u64, kind: Option<Kind>) -> Purpose {
        let mut state = self.state.lock();
        let (said, layer) = state.next.unwrap_or((Kind::Workspace, 0));
        let purpose = (kind.unwrap_or(said), layer);
        match state.live.iter_mut().find(|(of, _)| *of == purpose) {
            Some((_, live)) => *live += bytes,
            None => {
                state.live.push((purpose, bytes));
                state.live.sort_unstable();
            }
        }
        state.keep();
        purpose
    }

    pub(crate) fn freed(&self, bytes: u64, purpose: Purpose) {
        let mut state = self.state.lock();
        if let Some((_, live)) = state.live.iter_mut().find(|(of, _)| *of == purpose) {
            *live -= bytes;
        }
        state.keep();
    }

    /// A phase of a step begins. The first one begins a step, and the one before is forgotten.
    pub(crate) fn phase(&self, name: &'static str, is_first: bool) {
        let mut state = self.state.lock();
        if is_first {
            (state.step, state.is_in_step) = (StepMemory::default(), true);
            state.keep();
        }
        if state.is_in_step {
            let at = state.step.live.len() - 1;
            state.step.phases.push((at, name));
        }
    }

    pub(crate) fn ends(&self) {
        self.state.lock().is_in_step = false;
    }

    pub(crate) fn step(&self) -> StepMemory {
        self.state.lock().step.clone()
    }
}

impl State {
    fn keep(&mut self) {
        if self.is_in_step {
            self.step.live.push(self.live.clone());
        }
    }
}
