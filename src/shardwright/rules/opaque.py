"""Primitives that stay opaque on purpose, and why: every dim of theirs needs replication."""

from __future__ import annotations

_BY_REASON: dict[str, str] = {
    "collective of a shard_map body in two halves or of unreduced types; not priced": """
        all_gather_done all_gather_reduced all_gather_reduced_start all_gather_start
        all_to_all_done all_to_all_start pbroadcast_done pbroadcast_start ppermute_done
        ppermute_start precv preduced psend psum_done psum_invariant_start psum_start
        reduce_scatter_done reduce_scatter_start reduced_vary_cast_p
        unreduced_psum unreduced_psum_start unreduced_reduce_scatter
        unreduced_reduce_scatter_start vary_unreduced_cast_p""",
    "an array of one process and of all: where it is, is not ours to change": """
        global_array_to_host_local_array host_local_array_to_global_array""",
    "calls Python on the host": """
        pure_callback io_callback debug_callback debug_print buffer_callback inspect_sharding""",
    "a kernel that only its author knows; give it a rule with shardwright.rule": """
        ffi_call tpu_custom_call mosaic_gpu_p core_map mpmd_map run_scoped
        fused_call cudnn_fusion""",
    "appears only inside Pallas kernels": """
        bitcast broadcast_to einshape_lo max_contiguous multiple_of reciprocal roll
        remove_memory_space with_memory_space_constraint""",
    "linear buffers have no factors": "create_linear pin unpin",
    "a token or an effect, not an array": "after_all create_token check dce_sink unreachable",
    "shapes of exported programs, known before a plan is made": """
        dim_as_value dimension_size shape_assertion""",
    "a cuDNN kernel that only its wrapper calls, or of fp8 with scales of whole arrays": """
        dot_product_attention_bwd dot_product_attention_fp8_bwd
        dot_product_attention_fp8_bwd_wrapper dot_product_attention_fp8_fwd
        dot_product_attention_fp8_fwd_wrapper dot_product_attention_fwd rnn_bwd rnn_fwd
        scaled_matmul""",
    "the compiled text of another program: plan the function before it is exported": """
        call_exported""",
    "sparse formats: where the non-zeros are is data": """
        coo_fromdense coo_matmat coo_matvec coo_spmm coo_spmv coo_todense csr_fromdense csr_matmat
        csr_matvec csr_spmm csr_spmv csr_todense spsolve todense""",
}

OPAQUE: dict[str, str] = {
    name: reason for reason, names in _BY_REASON.items() for name in names.split()
}
