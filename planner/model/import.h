/* A config.json on its way to a model file: what it says (import.c), and the file (import_write.c). */
#ifndef HD_IMPORT_H
#define HD_IMPORT_H

#include <heddle/planner.h>

/* How the layers treat the text. */
typedef enum hd_import_text {
    HD_IMPORT_JOINED,   /* it joins the sequence; own weights in the first num_layers, shared in num_single_layers */
    HD_IMPORT_SHARED,   /* it joins the sequence and has the same weights (CogVideoX) */
    HD_IMPORT_NARROWER, /* it joins the sequence with weights and fewer channels of its own (Mochi) */
    HD_IMPORT_CROSS,    /* cross-attention */
    HD_IMPORT_DIVIDED   /* cross-attention in spatial layers, each followed by a temporal one (Latte) */
} hd_import_text;

typedef struct hd_import_class {
    const char *name, *model;
    hd_import_text text_is;
    int patch;                  /* unless the config has patch_size; 0: it must */
    int vae_frames, vae_pixels; /* that become one of the latent video; 0 frames: a picture */
    int packs;                  /* in_channels are those of so many x so many latent pixels */
    int frames, height, width;  /* usual */
    int text;                   /* rows, unless the config has max_text_seq_length or text_seq_length */
    int guidance;               /* unless the config has guidance_embeds */
    int steps;
    int qk_norm, rope;     /* unless the config says so */
    int64_t decoder_flops; /* of the VAE, for a position of the latent video of the usual clip */
} hd_import_class;

/* What a config says. */
typedef struct hd_import {
    const hd_import_class *of;
    heddle_import_options options;
    char *out; /* the file so far */
    size_t out_bytes, used;
    int64_t heads, channels, layers, singles, patch_t, patch, in_channels, out_channels, text, narrow;
    int64_t ffn, ratio_millionths, interval, time_channels;
    int64_t frames, height, width; /* tokens */
    int guidance, qk_norm, rope;
} hd_import;

/* The model file into `out`; used >= out_bytes: it was too long. */
void hd_import_write(hd_import *import);

#endif
