//! culvert-nft
