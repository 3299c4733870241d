//! Rules of the tree that no lint of the compiler knows: who may depend on whom,
//! how long a file may be, which words are not used, what documents must say.
//! Each check gives the list of its violations.

mod documents;
mod layers;
mod source;

pub use documents::{Program, config_page, undocumented_metrics};
pub use layers::layering;
pub use source::{file_lengths, places, words};
