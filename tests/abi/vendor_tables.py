# SPDX-License-Identifier: MIT
"""Layouts and numbers of interfaces that no golden table holds.

A line is KIND TAG SIZE: OFFSET TYPE NAME, ...; members of anonymous structures and unions stand
among the others, with their offset in the whole.

Sources: rknpu and wrapfd from their specifications; the two FastRPC interfaces of Qualcomm's
kernels measured with a C compiler on x86-64 (dsp-kernel's include/uapi/misc/fastrpc.h, and
drivers/char/adsprpc_shared.h of kernel 5.15; GETPERF from that of kernel 4.14).
"""

RKNPU = """
struct rknpu_mem_create 48: 0 u32 handle, 4 u32 flags, 8 u64 size, 16 u64 obj_addr, 24 u64 dma_addr,
    32 u64 sram_size, 40 s32 iommu_domain_id, 44 u32 core_mask
struct rknpu_mem_map 16: 0 u32 handle, 4 u32 reserved, 8 u64 offset
struct rknpu_mem_destroy 16: 0 u32 handle, 4 u32 reserved, 8 u64 obj_addr
struct rknpu_mem_sync 32: 0 u32 flags, 4 u32 reserved, 8 u64 obj_addr, 16 u64 offset, 24 u64 size
struct rknpu_task 40: 0 u32 flags, 4 u32 op_idx, 8 u32 enable_mask, 12 u32 int_mask,
    16 u32 int_clear, 20 u32 int_status, 24 u32 regcfg_amount, 28 u32 regcfg_offset,
    32 u64 regcmd_addr
struct rknpu_subcore_task 8: 0 u32 task_start, 4 u32 task_number
struct rknpu_submit 104: 0 u32 flags, 4 u32 timeout, 8 u32 task_start, 12 u32 task_number,
    16 u32 task_counter, 20 s32 priority, 24 u64 task_obj_addr, 32 u32 iommu_domain_id,
    36 u32 reserved, 40 u64 task_base_addr, 48 s64 hw_elapse_time, 56 u32 core_mask,
    60 s32 fence_fd, 64 rknpu_subcore_task subcore_task[5]
struct rknpu_action 8: 0 u32 flags, 4 u32 value
"""
RKNPU_NUMBERS = """
DRM_IOCTL_RKNPU_ACTION 0xC0086440, IOCTL_RKNPU_ACTION 0xC0087200,
DRM_IOCTL_RKNPU_SUBMIT 0xC0686441, IOCTL_RKNPU_SUBMIT 0xC0687201,
DRM_IOCTL_RKNPU_MEM_CREATE 0xC0306442, IOCTL_RKNPU_MEM_CREATE 0xC0307202,
DRM_IOCTL_RKNPU_MEM_MAP 0xC0106443, IOCTL_RKNPU_MEM_MAP 0xC0107203,
DRM_IOCTL_RKNPU_MEM_DESTROY 0xC0106444, IOCTL_RKNPU_MEM_DESTROY 0xC0107204,
DRM_IOCTL_RKNPU_MEM_SYNC 0xC0206445, IOCTL_RKNPU_MEM_SYNC 0xC0207205,
RKNPU_IOC_MAGIC 0x72, RKNPU_ACTION 0, RKNPU_SUBMIT 1, RKNPU_MEM_CREATE 2, RKNPU_MEM_MAP 3,
RKNPU_MEM_DESTROY 4, RKNPU_MEM_SYNC 5,
RKNPU_MEM_CONTIGUOUS 0, RKNPU_MEM_NON_CONTIGUOUS 1, RKNPU_MEM_NON_CACHEABLE 0,
RKNPU_MEM_CACHEABLE 2, RKNPU_MEM_WRITE_COMBINE 4, RKNPU_MEM_KERNEL_MAPPING 8, RKNPU_MEM_IOMMU 0x10,
RKNPU_MEM_ZEROING 0x20, RKNPU_MEM_SECURE 0x40, RKNPU_MEM_DMA32 0x80, RKNPU_MEM_NON_DMA32 0x80,
RKNPU_MEM_TRY_ALLOC_SRAM 0x100, RKNPU_MEM_TRY_ALLOC_NBUF 0x200,
RKNPU_MEM_IOMMU_LIMIT_IOVA_ALIGNMENT 0x400, RKNPU_MEM_MASK 0x7FF,
RKNPU_MEM_SYNC_TO_DEVICE 1, RKNPU_MEM_SYNC_FROM_DEVICE 2, RKNPU_MEM_SYNC_MASK 3,
RKNPU_JOB_SLAVE 0, RKNPU_JOB_PC 1, RKNPU_JOB_BLOCK 0, RKNPU_JOB_NONBLOCK 2, RKNPU_JOB_PINGPONG 4,
RKNPU_JOB_FENCE_IN 8, RKNPU_JOB_FENCE_OUT 0x10, RKNPU_JOB_MASK 0x1F,
RKNPU_CORE_AUTO_MASK 0, RKNPU_CORE0_MASK 1, RKNPU_CORE1_MASK 2, RKNPU_CORE2_MASK 4,
RKNPU_GET_HW_VERSION 0, RKNPU_GET_DRV_VERSION 1, RKNPU_GET_FREQ 2, RKNPU_SET_FREQ 3,
RKNPU_GET_VOLT 4, RKNPU_SET_VOLT 5, RKNPU_ACT_RESET 6, RKNPU_GET_BW_PRIORITY 7,
RKNPU_SET_BW_PRIORITY 8, RKNPU_GET_BW_EXPECT 9, RKNPU_SET_BW_EXPECT 10, RKNPU_GET_BW_TW 11,
RKNPU_SET_BW_TW 12, RKNPU_ACT_CLR_TOTAL_RW_AMOUNT 13, RKNPU_GET_DT_WR_AMOUNT 14,
RKNPU_GET_DT_RD_AMOUNT 15, RKNPU_GET_WT_RD_AMOUNT 16, RKNPU_GET_TOTAL_RW_AMOUNT 17,
RKNPU_GET_IOMMU_EN 18, RKNPU_SET_PROC_NICE 19, RKNPU_POWER_ON 20, RKNPU_POWER_OFF 21,
RKNPU_GET_TOTAL_SRAM_SIZE 22, RKNPU_GET_FREE_SRAM_SIZE 23, RKNPU_GET_IOMMU_DOMAIN_ID 24,
RKNPU_SET_IOMMU_DOMAIN_ID 25, RKNPU_PC_DATA_EXTRA_AMOUNT 4
"""
RKNPU_0_8 = """
struct rknpu_mem_create 40: 0 u32 handle, 4 u32 flags, 8 u64 size, 16 u64 obj_addr, 24 u64 dma_addr,
    32 u64 sram_size
struct rknpu_submit 104: 0 u32 flags, 4 u32 timeout, 8 u32 task_start, 12 u32 task_number,
    16 u32 task_counter, 20 s32 priority, 24 u64 task_obj_addr, 32 u64 regcfg_obj_addr,
    40 u64 task_base_addr, 48 u64 user_data, 56 u32 core_mask, 60 s32 fence_fd,
    64 rknpu_subcore_task subcore_task[5]
"""
RKNPU_0_8_NUMBERS = """
DRM_IOCTL_RKNPU_MEM_CREATE 0xC0286442, IOCTL_RKNPU_MEM_CREATE 0xC0287202,
DRM_IOCTL_RKNPU_SUBMIT 0xC0686441, IOCTL_RKNPU_SUBMIT 0xC0687201, RKNPU_MEM_MASK 0x1FF
"""

WRAPFD = """
struct wrapfd_wrap 16: 0 u32 fd, 4 u32 prot, 8 u64 reserved
struct wrapfd_get_state 16: 0 u32 state, 4 u32 pad, 8 u64 reserved
struct wrapfd_load 40: 0 u32 fd, 4 u32 pad, 8 u64 file_offs, 16 u64 buf_offs, 24 u64 len,
    32 u64 reserved
struct wrapfd_rewrap 16: 0 u32 prot, 4 u32 pad, 8 u64 reserved
"""
WRAPFD_NUMBERS = """
WRAPFD_DEV_IOC 0xBC, WRAPFD_CONTENT_EMPTY 0, WRAPFD_CONTENT_RDONLY 1, WRAPFD_CONTENT_RDWR 2,
WRAPFD_DEV_IOC_WRAP 0x4010BC00, WRAPFD_DEV_IOC_GET_STATE 0xC010BC01,
WRAPFD_DEV_IOC_ACQUIRE_OWNERSHIP 0xBC02, WRAPFD_DEV_IOC_RELEASE_OWNERSHIP 0xBC03,
WRAPFD_DEV_IOC_LOAD 0x4028BC04, WRAPFD_DEV_IOC_REWRAP 0x4010BC05, WRAPFD_DEV_IOC_EMPTY 0xBC06,
WRAPFD_DEV_IOC_ALLOW_GUESTS 0xBC07, WRAPFD_DEV_IOC_PROHIBIT_GUESTS 0xBC08
"""
WRAPFD_1 = """
struct wrapfd_wrap 16: 0 s64 fd, 8 u64 prot
struct wrapfd_get_state 16: 0 s64 fd, 8 u64 state
struct wrapfd_load 32: 0 s64 fd, 8 u64 file_offs, 16 u64 buf_offs, 24 u64 len
struct wrapfd_rewrap 8: 0 u64 prot
"""
WRAPFD_1_NUMBERS = """
WRAPFD_DEV_IOC_WRAP 0x4010BC00, WRAPFD_DEV_IOC_GET_STATE 0xC010BC01, WRAPFD_DEV_IOC_GET 0xBC02,
WRAPFD_DEV_IOC_PUT 0xBC03, WRAPFD_DEV_IOC_LOAD 0x4020BC04, WRAPFD_DEV_IOC_REWRAP 0x4008BC05
"""
WRAPFD_1_RESERVED = """
struct wrapfd_wrap 24: 0 s64 fd, 8 u64 prot, 16 u64 reserved
struct wrapfd_get_state 16: 0 u64 state, 8 u64 reserved
struct wrapfd_load 40: 0 s64 fd, 8 u64 file_offs, 16 u64 buf_offs, 24 u64 len, 32 u64 reserved
struct wrapfd_rewrap 16: 0 u64 prot, 8 u64 reserved
"""
WRAPFD_1_RESERVED_NUMBERS = """
WRAPFD_DEV_IOC_WRAP 0x4018BC00, WRAPFD_DEV_IOC_GET_STATE 0xC010BC01, WRAPFD_DEV_IOC_GET 0xBC02,
WRAPFD_DEV_IOC_PUT 0xBC03, WRAPFD_DEV_IOC_LOAD 0x4028BC04, WRAPFD_DEV_IOC_REWRAP 0x4010BC05
"""

MULTIMODE = """
struct fastrpc_invoke_args 24: 0 u64 ptr, 8 u64 length, 16 s32 fd, 20 u32 attr
struct fastrpc_invoke 16: 0 u32 handle, 4 u32 sc, 8 u64 args
struct fastrpc_enhanced_invoke 120: 0 fastrpc_invoke inv, 16 u64 crc, 24 u64 perf_kernel, 32 u64
    perf_dsp, 40 u32 priority, 44 u32 appid, 48 u32 reserved[18]
struct fastrpc_ioctl_multimode_invoke 56: 0 u32 req, 8 u64 invparam, 16 u64 size, 24 u32
    dynamic_domains, 28 u32 reserved[7]
struct fastrpc_npu_priority 48: 0 u32 num_configs, 4 u32 version, 8 u64 configs, 16 u32
    reserved[8]
struct npu_work_info 192: 0 u64 timestamp_ms, 8 u64 group_id, 16 u64 debug_feature_id, 24 u32
    event, 28 s32 id, 32 s32 uid, 36 s32 debug_pid, 40 s32 original_uid, 44 s32 domain, 48 s32
    job_priority, 52 s32 effective_priority, 56 u32 group_id_len, 60 u32 debug_feature_id_len, 64
    u32 version, 68 u32 reason, 72 u64 reserved[15]
struct fastrpc_ioctl_npu_priority_workinfo 264: 0 u32 op, 4 u32 rsvd, 8 fastrpc_npu_priority prio,
    8 npu_work_info workinfo, 200 u32 reserved[16]
struct fastrpc_init_create 24: 0 u32 filelen, 4 s32 filefd, 8 u32 attrs, 12 u32 siglen, 16 u64
    file
struct fastrpc_timeline_arguments 72: 0 u32 num_events, 4 u32 version, 8 u64 reserved[8]
struct fastrpc_ioctl_timeline_buf 80: 0 u64 addr, 8 u32 total_events_cnt, 12 u32 buf_write_index,
    16 u64 reserved[8]
struct fastrpc_init_create_static 16: 0 u32 namelen, 4 u32 memlen, 8 u64 name
struct fastrpc_ioctl_init_attach2 32: 0 u32 filelen, 4 s32 filefd, 8 u64 file, 16 s32 reserved[4]
struct fastrpc_alloc_dma_buf 16: 0 s32 fd, 4 u32 flags, 8 u64 size
struct fastrpc_req_mmap 32: 0 s32 fd, 4 u32 flags, 8 u64 vaddrin, 16 u64 size, 24 u64 vaddrout
struct fastrpc_mem_map 64: 0 s32 version, 4 s32 fd, 8 s32 offset, 12 u32 flags, 16 u64 vaddrin, 24
    u64 length, 32 u64 vaddrout, 40 s32 attrs, 44 s32 reserved[4]
struct fastrpc_req_munmap 16: 0 u64 vaddrout, 8 u64 size
struct fastrpc_mem_unmap 48: 0 s32 vesion, 4 s32 fd, 8 u64 vaddr, 16 u64 length, 24 u32 attr, 28
    s32 reserved[4]
struct fastrpc_ioctl_mdctx_manage 80: 0 u32 req, 8 u64 user_ctx, 16 u64 domain_ids, 24 u64
    session_ids, 32 u32 num_domains, 40 u64 ctx, 48 u32 reserved[8]
struct fastrpc_ioctl_remote_proc_state_dump 40: 0 u32 domain, 4 u32 session, 8 u32 level, 12 s32
    fd, 16 u32 size, 20 u32 reserved[5]
struct fastrpc_internal_proc_timeout 24: 0 u32 timeout, 4 u32 reserved[5]
struct fastrpc_ioctl_kernel_log 16: 0 u64 buffer, 8 u32 buffer_size, 12 u32 out_copied
struct fastrpc_thread_exit 4: 0 u32 thread_type
struct fastrpc_ioctl_remote_work 88: 0 u64 handle, 8 u32 priority, 12 u32 appid, 16 u32 type, 20
    u32 status, 24 u64 group_id, 32 u32 group_id_len, 40 u64 feature_id, 48 u32 feature_id_len, 52
    u32 reserved[8]
struct fastrpc_ioctl_capability 28: 0 u32 domain, 4 u32 attribute_id, 8 u32 capability, 12 u32
    reserved[4]
"""
MULTIMODE_NUMBERS = """
FASTRPC_IOCTL_ALLOC_DMA_BUFF 0xc0105201,
FASTRPC_IOCTL_FREE_DMA_BUFF 0xc0045202,
FASTRPC_IOCTL_INVOKE 0xc0105203,
FASTRPC_IOCTL_INIT_ATTACH 0x5204,
FASTRPC_IOCTL_INIT_CREATE 0xc0185205,
FASTRPC_IOCTL_MMAP 0xc0205206,
FASTRPC_IOCTL_MUNMAP 0xc0105207,
FASTRPC_IOCTL_INIT_ATTACH_SNS 0x5208,
FASTRPC_IOCTL_INIT_CREATE_STATIC 0xc0105209,
FASTRPC_IOCTL_MEM_MAP 0xc040520a,
FASTRPC_IOCTL_MEM_UNMAP 0xc030520b,
FASTRPC_IOCTL_MULTIMODE_INVOKE 0xc038520c,
FASTRPC_IOCTL_GET_DSP_INFO 0xc01c520d,
FASTRPC_IOCTL_INIT_ATTACH2 0xc020520e,
FASTRPC_IOCTL_GET_TIMELINE_BUFFER 0xc050520f,
FASTRPC_IOCTL_NPU_PRIORITY_WORKINFO 0xc1085210,
FASTRPC_MDCTX_IOCTL_RSVD 8, FASTRPC_RPC_TIMEOUT_IOCTL_RSVD 5, FASTRPC_TIMELINE_ARGS_RSVD 8,
FASTRPC_IOCTL_TIMELINE_BUF_RSVD 8, NPU_WORKINFO_VERSION 0, FASTRPC_MAP_STATIC 0,
FASTRPC_MAP_RESERVED 1, FASTRPC_MAP_FD 2, FASTRPC_MAP_FD_DELAYED 3, FASTRPC_MAP_FD_NOMAP 16,
FASTRPC_MAP_FD_EXTENDED 17, FASTRPC_MAP_FD_DELAYED_EXTENDED 18, FASTRPC_MAP_MAX 19,
FASTRPC_MAP_ATTR_DEFAULT 0, FASTRPC_ATTR_SECUREMAP 1, FASTRPC_ATTR_NOVA 256,
FASTRPC_MAP_ATTR_RETAIN_IOVA 1024, FASTRPC_MAP_ATTR_MAX 1025, FASTRPC_NSP 1, FASTRPC_LPASS 2,
FASTRPC_SDSP 3, FASTRPC_MAX_DSP_TYPE 4, FASTRPC_MODE_DEBUG 1, FASTRPC_MODE_PTRACE 2,
FASTRPC_MODE_CRC 4, FASTRPC_MODE_UNSIGNED_MODULE 8, FASTRPC_MODE_ADAPTIVE_QOS 16,
FASTRPC_MODE_SYSTEM_PROCESS 32, FASTRPC_MODE_PRIVILEGED 64, FASTRPC_MODE_SYSTEM_UNSIGNED_PD
131072, FASTRPC_NPU_OP_PRIORITY 0, FASTRPC_NPU_OP_WORKINFO 1, WORK_REQUESTED 0, WORK_STARTED 1,
WORK_ENDED 2, NPU_WORK_REASON_NONE 0, NPU_WORK_REASON_START_INITIAL 1,
NPU_WORK_REASON_END_COMPLETED 2, NPU_WORK_REASON_END_CANCELLED 3, FASTRPC_INVOKE 1,
FASTRPC_INVOKE_ENHANCED 2, FASTRPC_INVOKE_CONTROL 3, FASTRPC_INVOKE_DSPSIGNAL 4,
FASTRPC_INVOKE_NOTIF 5, FASTRPC_INVOKE_MULTISESSION 6, FASTRPC_INVOKE_CONFIG 7,
FASTRPC_INVOKE_SESSIONINFO 8, FASTRPC_INVOKE_MDCTX_MANAGE 9,
FASTRPC_INVOKE_REMOTE_PROCESS_STATE_DUMP 10, FASTRPC_INVOKE_SET_RPC_TIMEOUT 11,
FASTRPC_INVOKE_DISABLE_DSP_RECOVERY 12, FASTRPC_INVOKE_RETRIEVE_KERNEL_LOG 13,
FASTRPC_INVOKE_THREAD_EXIT 14, FASTRPC_SET_TIMELINE_INFO 15, FASTRPC_GET_TIMELINE_VERSION 16,
FASTRPC_INVOKE_REMOTE_WORK 17, FASTRPC_REMOTE_WORK_STATUS_START 1, FASTRPC_REMOTE_WORK_STATUS_END
2, FASTRPC_MDCTX_SETUP 0, FASTRPC_MDCTX_REMOVE 1, FASTRPC_THREAD_LOGGER 1, FASTRPC_CONTROL_LATENCY
1, FASTRPC_CONTROL_SMMU 2, FASTRPC_CONTROL_KALLOC 3, FASTRPC_CONTROL_WAKELOCK 4,
FASTRPC_CONTROL_PM 5, FASTRPC_CONTROL_DSPPROCESS_CLEAN 6, FASTRPC_CONTROL_RPC_POLL 7,
FASTRPC_CONTROL_ASYNC_WAKE 8, FASTRPC_CONTROL_NOTIF_WAKE 9, FASTRPC_DSPSIGNAL_SIGNAL 1,
FASTRPC_DSPSIGNAL_WAIT 2, FASTRPC_DSPSIGNAL_CREATE 3, FASTRPC_DSPSIGNAL_DESTROY 4,
FASTRPC_DSPSIGNAL_CANCEL_WAIT 5, FASTRPC_USERPD_UP 0, FASTRPC_USERPD_EXIT 1,
FASTRPC_USERPD_FORCE_KILL 2, FASTRPC_USERPD_EXCEPTION 3, FASTRPC_DSP_SSR 4, FASTRPC_USERPD_RELEASE
5, FASTRPC_USERPD_TIMEOUT 6, PERF_COUNT 0, PERF_RESERVED1 1, PERF_MAP 2, PERF_COPY 3, PERF_LINK 4,
PERF_GETARGS 5, PERF_PUTARGS 6, PERF_RESERVED2 7, PERF_INVOKE 8, PERF_RESERVED3 9, PERF_KEY_MAX 10
"""

ADSPRPC = """
struct remote_buf 16: 0 u64 pv, 8 u64 len
struct fastrpc_proc_sharedbuf_info 8: 0 s32 buf_fd, 4 s32 buf_size
struct remote_dma_handle 8: 0 s32 fd, 4 u32 offset
union remote_arg 16: 0 remote_buf buf, 0 remote_dma_handle dma, 0 u32 h
struct fastrpc_ioctl_invoke 16: 0 u32 handle, 4 u32 sc, 8 u64 pra
struct fastrpc_ioctl_invoke_fd 24: 0 fastrpc_ioctl_invoke inv, 16 u64 fds
struct fastrpc_ioctl_invoke_attrs 32: 0 fastrpc_ioctl_invoke inv, 16 u64 fds, 24 u64 attrs
struct fastrpc_ioctl_invoke_crc 40: 0 fastrpc_ioctl_invoke inv, 16 u64 fds, 24 u64 attrs, 32 u64
    crc
struct fastrpc_ioctl_invoke_perf 56: 0 fastrpc_ioctl_invoke inv, 16 u64 fds, 24 u64 attrs, 32 u64
    crc, 40 u64 perf_kernel, 48 u64 perf_dsp
struct fastrpc_async_job 24: 0 u32 isasyncjob, 8 u64 jobid, 16 u32 reserved
struct fastrpc_ioctl_invoke_async 64: 0 fastrpc_ioctl_invoke inv, 16 u64 fds, 24 u64 attrs, 32 u64
    crc, 40 u64 perf_kernel, 48 u64 perf_dsp, 56 u64 job
struct fastrpc_ioctl_invoke_async_no_perf 48: 0 fastrpc_ioctl_invoke inv, 16 u64 fds, 24 u64
    attrs, 32 u64 crc, 40 u64 job
struct fastrpc_ioctl_async_response 40: 0 u64 jobid, 8 s32 result, 16 u64 perf_kernel, 24 u64
    perf_dsp, 32 u32 handle, 36 u32 sc
struct fastrpc_ioctl_notif_rsp 12: 0 s32 domain, 4 s32 session, 8 u32 status
struct fastrpc_proc_sess_info 16: 0 u32 domain_id, 4 u32 session_id, 8 u32 pd_type, 12 u32
    sharedcb
struct fastrpc_ioctl_invoke2 24: 0 u32 req, 8 u64 invparam, 16 u32 size, 20 s32 err
struct fastrpc_ioctl_init 40: 0 u32 flags, 8 u64 file, 16 u32 filelen, 20 s32 filefd, 24 u64 mem,
    32 u32 memlen, 36 s32 memfd
struct fastrpc_ioctl_init_attrs 48: 0 fastrpc_ioctl_init init, 40 s32 attrs, 44 u32 siglen
struct fastrpc_ioctl_munmap 16: 0 u64 vaddrout, 8 u64 size
struct fastrpc_ioctl_munmap_64 16: 0 u64 vaddrout, 8 u64 size
struct fastrpc_ioctl_mmap 32: 0 s32 fd, 4 u32 flags, 8 u64 vaddrin, 16 u64 size, 24 u64 vaddrout
struct fastrpc_ioctl_mmap_64 32: 0 s32 fd, 4 u32 flags, 8 u64 vaddrin, 16 u64 size, 24 u64
    vaddrout
struct fastrpc_ioctl_munmap_fd 24: 0 s32 fd, 4 u32 flags, 8 u64 va, 16 s64 len
struct fastrpc_ioctl_perf 24: 0 u64 data, 8 u32 numkeys, 16 u64 keys
struct fastrpc_ioctl_dspsignal_create 8: 0 u32 signal_id, 4 u32 flags
struct fastrpc_ioctl_dspsignal_destroy 4: 0 u32 signal_id
struct fastrpc_ioctl_dspsignal_signal 4: 0 u32 signal_id
struct fastrpc_ioctl_dspsignal_wait 8: 0 u32 signal_id, 4 u32 timeout_usec
struct fastrpc_ioctl_dspsignal_cancel_wait 4: 0 u32 signal_id
struct fastrpc_mem_map 40: 0 s32 fd, 4 s32 offset, 8 u32 flags, 12 s32 attrs, 16 u64 vaddrin, 24
    u64 length, 32 u64 vaddrout
struct fastrpc_ioctl_mem_map 64: 0 s32 version, 8 fastrpc_mem_map m, 8 s32 reserved[14]
struct fastrpc_mem_unmap 24: 0 s32 fd, 8 u64 vaddr, 16 u64 length
struct fastrpc_ioctl_mem_unmap 48: 0 s32 version, 8 fastrpc_mem_unmap um, 8 s32 reserved[10]
struct fastrpc_ctrl_latency 8: 0 u32 enable, 4 u32 latency
struct fastrpc_ctrl_kalloc 4: 0 u32 kalloc_support
struct fastrpc_ctrl_wakelock 4: 0 u32 enable
struct fastrpc_ctrl_pm 4: 0 u32 timeout
struct fastrpc_ctrl_smmu 4: 0 u32 sharedcb
struct fastrpc_ioctl_control 12: 0 u32 req, 4 fastrpc_ctrl_latency lp, 4 fastrpc_ctrl_kalloc
    kalloc, 4 fastrpc_ctrl_wakelock wp, 4 fastrpc_ctrl_pm pm, 4 fastrpc_ctrl_smmu smmu
struct fastrpc_ioctl_capability 12: 0 u32 domain, 4 u32 attribute_ID, 8 u32 capability
"""
ADSPRPC_NUMBERS = """
FASTRPC_IOCTL_INVOKE 0xc0105201,
FASTRPC_IOCTL_MMAP 0xc0205202,
FASTRPC_IOCTL_MUNMAP 0xc0105203,
FASTRPC_IOCTL_MMAP_64 0xc020520e,
FASTRPC_IOCTL_MUNMAP_64 0xc010520f,
FASTRPC_IOCTL_INVOKE_FD 0xc0185204,
FASTRPC_IOCTL_SETMODE 0xc0045205,
FASTRPC_IOCTL_INIT 0xc0285206,
FASTRPC_IOCTL_INVOKE_ATTRS 0xc0205207,
FASTRPC_IOCTL_GETINFO 0xc0045208,
FASTRPC_IOCTL_GETPERF 0xc0185209,
FASTRPC_IOCTL_INIT_ATTRS 0xc030520a,
FASTRPC_IOCTL_INVOKE_CRC 0xc028520b,
FASTRPC_IOCTL_CONTROL 0xc00c520c,
FASTRPC_IOCTL_MUNMAP_FD 0xc018520d,
FASTRPC_IOCTL_GET_DSP_INFO 0xc00c5211,
FASTRPC_IOCTL_INVOKE2 0xc0185212,
FASTRPC_IOCTL_MEM_MAP 0xc0405213,
FASTRPC_IOCTL_MEM_UNMAP 0xc0305214,
FASTRPC_IOCTL_INVOKE_PERF 0xc0385215,
FASTRPC_IOCTL_NOTIF_RSP 0xc00c5216,
FASTRPC_IOCTL_DSPSIGNAL_CREATE 0xc0085217,
FASTRPC_IOCTL_DSPSIGNAL_DESTROY 0xc0045218,
FASTRPC_IOCTL_DSPSIGNAL_SIGNAL 0xc0045219,
FASTRPC_IOCTL_DSPSIGNAL_WAIT 0xc008521a,
FASTRPC_IOCTL_DSPSIGNAL_CANCEL_WAIT 0xc004521b,
FASTRPC_ATTR_NOVA 1, FASTRPC_ATTR_NON_COHERENT 2, FASTRPC_ATTR_COHERENT 4, FASTRPC_ATTR_KEEP_MAP
8, FASTRPC_ATTR_NOMAP 16, FASTRPC_ATTR_FORCE_NOFLUSH 32, FASTRPC_ATTR_FORCE_NOINVALIDATE 64,
FASTRPC_MODE_PARALLEL 0, FASTRPC_MODE_SERIAL 1, FASTRPC_MODE_PROFILE 2, FASTRPC_MODE_SESSION 4,
ADSP_DOMAIN_ID 0, MDSP_DOMAIN_ID 1, SDSP_DOMAIN_ID 2, CDSP_DOMAIN_ID 3, CDSP1_DOMAIN_ID 4,
GPDSP_DOMAIN_ID 5, GPDSP1_DOMAIN_ID 6, MAX_DOMAIN_ID 6, MAP_RESERVED_NUM 14, UNMAP_RESERVED_NUM
10, FASTRPC_MAX_DSP_ATTRIBUTES 256, FASTRPC_MAX_ATTRIBUTES 260, DSPSIGNAL_TIMEOUT_NONE 4294967295,
DSPSIGNAL_NUM_SIGNALS 1024, FASTRPC_INIT_NO_CREATE -1, FASTRPC_INIT_ATTACH 0, FASTRPC_INIT_CREATE
1, FASTRPC_INIT_CREATE_STATIC 2, FASTRPC_INIT_ATTACH_SENSORS 3, FASTRPC_INVOKE2_ASYNC 1,
FASTRPC_INVOKE2_ASYNC_RESPONSE 2, FASTRPC_INVOKE2_KERNEL_OPTIMIZATIONS 3,
FASTRPC_INVOKE2_STATUS_NOTIF 4, FASTRPC_INVOKE2_PROC_SHAREDBUF_INFO 5, FASTRPC_INVOKE2_SESS_INFO
6, FASTRPC_MAP_STATIC 0, FASTRPC_MAP_RESERVED 1, FASTRPC_MAP_FD 2, FASTRPC_MAP_FD_DELAYED 3,
FASTRPC_MAP_FD_NOMAP 16, FASTRPC_MAP_MAX 17, ADSP_MMAP_HEAP_ADDR 4, ADSP_MMAP_DMA_BUFFER 6,
ADSP_MMAP_REMOTE_HEAP_ADDR 8, ADSP_MMAP_ADD_PAGES 4096, ADSP_MMAP_ADD_PAGES_LLC 12288,
ADSP_MMAP_PERSIST_HDR 16384, FASTRPC_CONTROL_LATENCY 1, FASTRPC_CONTROL_SMMU 2,
FASTRPC_CONTROL_KALLOC 3, FASTRPC_CONTROL_WAKELOCK 4, FASTRPC_CONTROL_PM 5,
FASTRPC_CONTROL_DSPPROCESS_CLEAN 6, FASTRPC_CONTROL_RPC_POLL 7, FASTRPC_CONTROL_ASYNC_WAKE 8,
FASTRPC_CONTROL_NOTIF_WAKE 9, ASYNC_FASTRPC_CAP 9, DMA_HANDLE_REVERSE_RPC_CAP 129,
FASTRPC_USERPD_UP 0, FASTRPC_USERPD_EXIT 1, FASTRPC_USERPD_FORCE_KILL 2, FASTRPC_USERPD_EXCEPTION
3, FASTRPC_DSP_SSR 4
"""
